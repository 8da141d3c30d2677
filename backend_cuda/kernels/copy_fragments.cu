// Copies fragments of one size: blocks on the device, or small pieces between it and mapped pinned host memory.
//
// table   2 * count addresses as the device sees them, in memory that it can read: source k at [2k], target k at [2k + 1]
// bytes   of each fragment
//
// Addresses need no alignment; where source and target are multiples of 16, whole vectors of 16 bytes move. No target may
// overlap a source or another target. Any grid is right. Every byte is written by one thread, once.

typedef unsigned long long u64;

struct alignas(16) Vector {
    u64 low, high;
};

// A thread copies so much at a time, or what is left of the fragment.
constexpr u64 PIECE = sizeof(Vector);

// Both addresses and the size are multiples of a Word's.
template <typename Word> __device__ void copy(u64 source, u64 target, u64 size)
{
    const Word *from = reinterpret_cast<const Word *>(source);
    Word *to = reinterpret_cast<Word *>(target);
    for (u64 i = 0; i < size / sizeof(Word); i++)
        to[i] = from[i];
}

extern "C" __global__ void copy_fragments(const u64 *table, unsigned int count, u64 bytes)
{
    const u64 pieces = (bytes + PIECE - 1) / PIECE;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 held = count, held_source = 0, held_target = 0;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count * pieces; i += stride) {
        const u64 fragment = i / pieces;
        // The table may lie across the bus: it is read once a fragment, not once a piece.
        if (fragment != held) {
            held = fragment;
            held_source = table[2 * fragment];
            held_target = table[2 * fragment + 1];
        }
        const u64 start = i % pieces * PIECE;
        const u64 size = bytes - start < PIECE ? bytes - start : PIECE;
        const u64 source = held_source + start;
        const u64 target = held_target + start;
        // A power of two up to 16 divides all three exactly when it divides this.
        const u64 all = source | target | size;
        if (all % 16 == 0)
            copy<Vector>(source, target, size);
        else if (all % 8 == 0)
            copy<u64>(source, target, size);
        else if (all % 4 == 0)
            copy<unsigned int>(source, target, size);
        else
            copy<unsigned char>(source, target, size);
    }
}
