"""Models and devices: the numbers of the cost model, each with its public source. Units are last in the names.

Models: `config.json` of the repository named in `source`, on huggingface.co. Parameters are computed from it.
Devices: the vendor's data sheet named in `source`. FLOP/s are dense bf16 (data sheets often print twice that, "with sparsity");
PCIe is the nominal rate of an x16 link, one way: 32 GB/s for generation 4, 64 GB/s for generation 5.
"""

import attrs

BYTES_PER_VALUE = 2
"""bf16, for weights and for keys and values."""


@attrs.frozen(kw_only=True)
class Model:
    """A dense decoder-only transformer with gated MLP and untied embeddings, as its config.json describes it."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_tokens: int
    qkv_bias: bool = False
    source: str

    @property
    def layer_parameters(self) -> int:
        """Parameters of the layers: what every token is multiplied with."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        attention = self.hidden * qkv + self.heads * self.head_dim * self.hidden
        bias = qkv if self.qkv_bias else 0
        return self.layers * (attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection: multiplied with for sampled tokens only."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All of them: embedding, layers, final norm, output projection."""
        return 2 * self.head_parameters + self.layer_parameters + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Memory for the weights."""
        return self.parameters * BYTES_PER_VALUE

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory for keys and values of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


@attrs.frozen(kw_only=True)
class Device:
    """One accelerator."""

    name: str
    peak_flop_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str


MODELS = {
    model.name: model
    for model in (
        Model(
            name="llama-2-7b",
            layers=32,
            hidden=4096,
            intermediate=11008,
            heads=32,
            kv_heads=32,
            head_dim=128,
            vocab=32000,
            context_tokens=4096,
            source="meta-llama/Llama-2-7b-hf",
        ),
        Model(
            name="llama-2-13b",
            layers=40,
            hidden=5120,
            intermediate=13824,
            heads=40,
            kv_heads=40,
            head_dim=128,
            vocab=32000,
            context_tokens=4096,
            source="meta-llama/Llama-2-13b-hf",
        ),
        Model(
            name="llama-3.1-8b",
            layers=32,
            hidden=4096,
            intermediate=14336,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab=128256,
            context_tokens=131072,
            source="meta-llama/Llama-3.1-8B",
        ),
        Model(
            name="llama-3.1-70b",
            layers=80,
            hidden=8192,
            intermediate=28672,
            heads=64,
            kv_heads=8,
            head_dim=128,
            vocab=128256,
            context_tokens=131072,
            source="meta-llama/Llama-3.1-70B",
        ),
        Model(
            name="mistral-7b",
            layers=32,
            hidden=4096,
            intermediate=14336,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab=32768,
            context_tokens=32768,
            source="mistralai/Mistral-7B-v0.3",
        ),
        Model(
            name="qwen2.5-7b",
            layers=28,
            hidden=3584,
            intermediate=18944,
            heads=28,
            kv_heads=4,
            head_dim=128,
            vocab=152064,
            context_tokens=32768,
            qkv_bias=True,
            source="Qwen/Qwen2.5-7B-Instruct",
        ),
    )
}

DEVICES = {
    device.name: device
    for device in (
        Device(
            name="a100",
            peak_flop_per_s=312e12,
            memory_bytes=80 * 10**9,
            memory_bytes_per_s=2.039e12,
            pcie_bytes_per_s=32e9,
            source="NVIDIA A100 Tensor Core GPU data sheet, A100 80GB SXM; PCIe generation 4",
        ),
        Device(
            name="l40s",
            peak_flop_per_s=362.05e12,
            memory_bytes=48 * 10**9,
            memory_bytes_per_s=0.864e12,
            pcie_bytes_per_s=32e9,
            source="NVIDIA L40S data sheet; PCIe generation 4",
        ),
        Device(
            name="h100",
            peak_flop_per_s=989.4e12,
            memory_bytes=80 * 10**9,
            memory_bytes_per_s=3.35e12,
            pcie_bytes_per_s=64e9,
            source="NVIDIA H100 Tensor Core GPU data sheet, H100 SXM (1,979 TFLOP/s with sparsity); PCIe generation 5",
        ),
        Device(
            name="h200",
            peak_flop_per_s=989.4e12,
            memory_bytes=141 * 10**9,
            memory_bytes_per_s=4.8e12,
            pcie_bytes_per_s=64e9,
            source="NVIDIA H200 Tensor Core GPU data sheet, H200 SXM (1,979 TFLOP/s with sparsity); PCIe generation 5",
        ),
        Device(
            name="b200",
            peak_flop_per_s=2.25e15,
            memory_bytes=180 * 10**9,
            memory_bytes_per_s=8.0e12,
            pcie_bytes_per_s=64e9,
            source="NVIDIA HGX B200 data sheet, an eighth of it (36 PFLOP/s with sparsity, 1.44 TB, 64 TB/s); PCIe generation 5",
        ),
        Device(
            name="mi300x",
            peak_flop_per_s=1307.4e12,
            memory_bytes=192 * 10**9,
            memory_bytes_per_s=5.3e12,
            pcie_bytes_per_s=64e9,
            source="AMD Instinct MI300X data sheet; PCIe generation 5",
        ),
    )
}
