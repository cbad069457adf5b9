"""`metasd train eagle`: features, epochs, a measure on held-out answers, and a folder that `drafters=` takes."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metasd.core import MetaSDError, refuse
from metasd.drafters.eagle.checkpoint import load_head, save_head
from metasd.drafters.eagle.config import HeadConfig
from metasd.drafters.eagle.head import EagleHead
from metasd.target import Target
from metasd.training.answers import Answer, split_answers
from metasd.training.eagle import (
    Batch,
    EagleRecipe,
    Vocabulary,
    choose_draft_ids,
    held_out_acceptance,
    make_optimizer,
    train_step,
)
from metasd.training.feature_store import CONTEXT, FeatureStore
from metasd.training.job import Advance, Job

STATE_FILE = "training.pt"
DRAFT_VOCAB_SIZE = 8192
_SAVE_EVERY = 100  # steps
_WINDOW = 16  # batches that are sorted by length at a time
_MEASURED_DEPTH = 4


def train(
    job: Job,
    *,
    epochs: int = EagleRecipe.num_epochs,
    learning_rate: float = EagleRecipe.learning_rate,
    draft_vocab: int | None = None,
    start_from: Path | None = None,
) -> dict[str, Any]:
    """Train an EAGLE-1 head for a target on its own answers; a run that was interrupted goes on.

    Args:
        job: target (Llama- or Qwen-like; its embedding and head are used as they are), answers, folder for the head.
        epochs: passes over the answers; learning_rate: the largest.
        draft_vocab: rows of the target's head that a draft can be drawn from, the most frequent in the answers and
            their prompts; by default 8192, or those of the head to start from.
        start_from: folder of a head to start from; its draft vocabulary fills up a new one.

    Returns:
        facts of the run, `held_out_acceptance` by depth among them; also in `training.json` in the folder.

    Raises:
        MetaSDError: the target is of an architecture that a head cannot be made for.
        UsageError: there are too few answers.
    """
    recipe = EagleRecipe(num_epochs=epochs, learning_rate=learning_rate)
    train, held_out = split_answers(job.answers)
    if len(train) < recipe.batch_size:
        raise refuse("data", f"at least {recipe.batch_size} answers to train on", len(train))
    target, folder, advance = job.target, job.output, job.advance
    model, device = target.model, target.device
    size = model.get_input_embeddings().weight.shape[1]
    store = FeatureStore(job.work, size)
    num_tokens, done = sum(len(a.prompt_ids) + len(a.output_ids) for a in (*train, *held_out)), 0

    def advance_features(count: int) -> None:
        nonlocal done
        done += count
        advance("features", done, num_tokens, "tokens")

    store.fill(model, [*train, *held_out], advance_features)
    torch.manual_seed(recipe.seed)
    head, draft_ids = _begin(target, train, draft_vocab, start_from)
    head.train().float().to(device)
    matrices = [
        module.weight.detach().float() for module in (model.get_input_embeddings(), model.get_output_embeddings())
    ]
    vocabulary = Vocabulary(matrices[0], matrices[1], draft_ids.to(device))
    losses = _train(head, store, train, vocabulary, recipe, folder, device, advance)
    acceptance = held_out_acceptance(
        head.eval(), [store.sample(answer) for answer in held_out], vocabulary, _MEASURED_DEPTH, device
    )
    facts = {
        "kind": "eagle",
        "recipe": asdict(recipe),
        "start_from": start_from.name if start_from else None,
        "num_answers": len(train),
        "num_tokens": sum(len(answer.output_ids) for answer in train),
        "num_held_out": len(held_out),
        "held_out_acceptance": [round(share, 4) for share in acceptance],
        "mean_acceptance_length": round(1 + sum(acceptance), 3),
        "loss": losses,
        **job.metadata,
    }
    save_head(folder, head.to(torch.bfloat16), draft_ids.cpu(), dict(job.metadata))
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    (folder / STATE_FILE).unlink(missing_ok=True)
    return facts


def _begin(
    target: Target, train: Sequence[Answer], draft_vocab_size: int | None, start_from: Path | None
) -> tuple[EagleHead, Tensor]:
    seen = [ids for answer in train for ids in (answer.prompt_ids, answer.output_ids)]
    if start_from is not None:
        loaded = load_head(start_from, target.model.config, dtype=torch.float32, device=target.device)
        if loaded.head.config.version != 1 or loaded.vocab_matrix is not None or loaded.draft_to_target is None:
            raise MetaSDError(f"{start_from}: expected an EAGLE-1 head with a draft vocabulary, as this command makes")
        if draft_vocab_size is None:
            return loaded.head, loaded.draft_to_target
        ids = choose_draft_ids(seen, draft_vocab_size, target.vocab_size, loaded.draft_to_target)
        loaded.head.config = replace(loaded.head.config, draft_vocab_size=len(ids))
        return loaded.head, ids
    head = EagleHead(head_config(target))
    for name, parameter in head.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return head, choose_draft_ids(seen, draft_vocab_size or DRAFT_VOCAB_SIZE, target.vocab_size)


def head_config(target: Target) -> HeadConfig:
    """Sizes of an EAGLE-1 head: one layer like the target's own.

    Raises:
        MetaSDError: the target's config lacks a size that a Llama-like layer has.
    """
    config = target.model.config.get_text_config(decoder=True)
    try:
        heads, size = config.num_attention_heads, config.hidden_size
        rope: dict[str, Any] = {
            "hidden_size": size,
            "num_attention_heads": heads,
            "head_dim": getattr(config, "head_dim", None) or size // heads,
            "max_position_embeddings": config.max_position_embeddings,
            "rope_parameters": dict(config.rope_parameters),
        }
        return HeadConfig(
            version=1,
            hidden_size=size,
            feature_size=size,
            intermediate_size=config.intermediate_size,
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=rope["head_dim"],
            rms_norm_eps=config.rms_norm_eps,
            hidden_act=config.hidden_act,
            rope=rope,
        )
    except (AttributeError, TypeError) as error:
        raise MetaSDError(f"target: expected a Llama- or Qwen-like model for an EAGLE head ({error})") from error


def _train(
    head: EagleHead, store: FeatureStore, train: Sequence[Answer], vocabulary: Vocabulary, recipe: EagleRecipe,
    folder: Path, device: torch.device, advance: Advance,
) -> list[float]:  # fmt: skip
    """All epochs; mean loss of each. The state is written every hundred steps, and a run goes on from there."""
    steps_an_epoch = len(train) // recipe.batch_size
    num_steps = steps_an_epoch * recipe.num_epochs
    optimizer, schedule = make_optimizer(head, recipe, num_steps)
    folder.mkdir(parents=True, exist_ok=True)
    state_file, wanted = folder / STATE_FILE, [asdict(recipe), len(train)]
    first, losses = 0, []
    if state_file.exists():
        state = torch.load(state_file, weights_only=True, map_location=device)
        if state["wanted"] == wanted:
            head.load_state_dict(state["head"])
            optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["rng"].cpu())
            first, losses = state["step"], state["losses"]
    for step in range(first, num_steps):
        epoch, index = divmod(step, steps_an_epoch)
        if index == 0 or step == first:
            batches = _batches(train, recipe, epoch)
        batch = Batch.of([store.sample(answer) for answer in batches[index]], device)
        losses.append(train_step(head, batch, vocabulary, recipe, optimizer, schedule))
        if (step + 1) % _SAVE_EVERY == 0:
            state = {"wanted": wanted, "head": head.state_dict(), "optimizer": optimizer.state_dict(),
                     "schedule": schedule.state_dict(), "rng": torch.get_rng_state(), "step": step + 1,
                     "losses": losses}  # fmt: skip
            torch.save(state, folder / "training.part")
            (folder / "training.part").replace(state_file)
        advance("steps", step + 1, num_steps, f"loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")
    return [
        round(sum(losses[i : i + steps_an_epoch]) / steps_an_epoch, 4) for i in range(0, len(losses), steps_an_epoch)
    ]


def _batches(train: Sequence[Answer], recipe: EagleRecipe, epoch: int) -> list[list[Answer]]:
    """The answers of an epoch in random order, those in a batch of about equal length: less padding."""
    chance = random.Random(f"{recipe.seed} {epoch}")
    order, size = chance.sample(list(train), len(train)), recipe.batch_size
    batches = []
    for first in range(0, len(order) - size + 1, _WINDOW * size):
        window = order[first : first + _WINDOW * size]
        window.sort(key=lambda answer: len(answer.output_ids) + min(len(answer.prompt_ids), CONTEXT))
        batches += [window[i : i + size] for i in range(0, len(window) - size + 1, size)]
    chance.shuffle(batches)
    return batches
