// Makes a kernel's .cu host C++, for tests: c++ -std=c++17 -include cuda_host.h -x c++ KERNEL.cu
//
// HOST_KERNEL(name), after the kernel, defines what a test calls; `args` has the addresses of the kernel's arguments, as
// for cuLaunchKernel:
//
//   name_thread(blocks, threads, block, thread, args)   one thread of a grid
//   name_grid(blocks, threads, args)                    all of them, one after the other
//
// One call at a time. Grids have one dimension. Threads that wait for each other do not work.

#pragma once

#include <cstddef>
#include <utility>

#define __global__
#define __device__

struct HostIndex {
    unsigned int x;
};

inline HostIndex threadIdx, blockIdx, blockDim, gridDim;

template <typename... Args, std::size_t... I>
void host_thread(void (*kernel)(Args...), void **args, std::index_sequence<I...>)
{
    kernel(*static_cast<Args *>(args[I])...);
}

template <typename... Args>
void host_thread(void (*kernel)(Args...), unsigned int blocks, unsigned int threads, unsigned int block, unsigned int thread,
                 void **args)
{
    gridDim.x = blocks;
    blockDim.x = threads;
    blockIdx.x = block;
    threadIdx.x = thread;
    host_thread(kernel, args, std::index_sequence_for<Args...>{});
}

#define HOST_KERNEL(name)                                                                                                      \
    extern "C" void name##_thread(unsigned int blocks, unsigned int threads, unsigned int block, unsigned int thread,          \
                                  void **args)                                                                                 \
    {                                                                                                                          \
        host_thread(name, blocks, threads, block, thread, args);                                                               \
    }                                                                                                                          \
    extern "C" void name##_grid(unsigned int blocks, unsigned int threads, void **args)                                        \
    {                                                                                                                          \
        for (unsigned int block = 0; block < blocks; block++)                                                                  \
            for (unsigned int thread = 0; thread < threads; thread++)                                                          \
                host_thread(name, blocks, threads, block, thread, args);                                                       \
    }
