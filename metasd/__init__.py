"""Multi-drafter speculative decoding: one target, a pool of drafters, a bandit that picks one of them each round.

from metasd import MetaSD, SamplingParams

engine = MetaSD.from_pretrained("demo", drafters=["ngram", "suffix"])
print(engine.generate("The capital of France is", SamplingParams(max_new_tokens=32)).text)
"""

try:
    from metasd.config import SamplingParams
    from metasd.core import MetaSDError, UsageError
    from metasd.engine import MetaSD
except ModuleNotFoundError as error:
    if error.name not in ("transformers", "safetensors"):
        raise
    raise ModuleNotFoundError(
        f"metasd needs {error.name}: pip install 'metasd[decode]' (metasd_kernels works without it)", name=error.name
    ) from error

__version__ = "0.1.0"
__all__ = ["MetaSD", "MetaSDError", "SamplingParams", "UsageError"]
