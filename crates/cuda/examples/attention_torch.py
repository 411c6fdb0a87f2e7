"""Times PyTorch's fused attentions as attention_cudnn.rs times ours, for a reading beside it."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}
SHAPES = [(8192, 32, 8, 128), (32768, 32, 8, 128), (2048, 9, 3, 64), (8192, 14, 2, 64)]


def median_ms(queue):
    for _ in range(5):
        queue()
    torch.cuda.synchronize()
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        queue()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) for start, end in times)
    return times[len(times) // 2]


def main():
    print("PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
    for tokens, heads, key_value_heads, dim in SHAPES:
        new = lambda n: torch.randn(1, tokens, n, dim, device="cuda", dtype=torch.bfloat16)
        q, k, v = (new(n).transpose(1, 2).requires_grad_() for n in (heads, key_value_heads, key_value_heads))
        gradient = new(heads).transpose(1, 2)
        for name, backend in BACKENDS.items():
            with sdpa_kernel(backend):
                attend = lambda: torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True
                )
                try:
                    forward = median_ms(attend)
                    both = median_ms(lambda: torch.autograd.grad(attend(), (q, k, v), gradient))
                except RuntimeError as error:
                    print(f"{tokens} x {heads}/{key_value_heads} x {dim} {name}: {error}")
                    continue
            print(
                f"{tokens} x {heads}/{key_value_heads} x {dim} {name}: "
                f"forward {forward:.3f}; forward and backward {both:.3f}"
            )


main()
