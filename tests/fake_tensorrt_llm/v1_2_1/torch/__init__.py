"""torch, as much of it as is used."""

from tests.fake_tensorrt_llm.tensor import cuda, float32, log_softmax, topk, zeros

__all__ = ["cuda", "float32", "log_softmax", "topk", "zeros"]
