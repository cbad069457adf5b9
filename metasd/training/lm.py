"""`metasd train lm`: a small Llama with the target's tokenizer, trained on the target's answers."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from metasd.core import refuse
from metasd.training.answers import Answer, split_answers
from metasd.training.job import Job

_BATCH_SIZE = 8
_SAVE_EVERY = 200  # steps


def train(
    job: Job,
    *,
    epochs: int = 3,
    learning_rate: float = 1e-3,
    num_layers: int = 2,
    hidden_size: int = 256,
    start_from: Path | None = None,
) -> dict[str, Any]:
    """Train a causal model on the tokens that the target said, its law there as the label; an interrupted run goes on.

    Args:
        job: target, answers, folder for the model.
        epochs: passes over the answers; learning_rate: the largest.
        num_layers, hidden_size: of a new Llama.
        start_from: folder of a causal model with the target's tokenizer to start from instead.

    Returns:
        facts of the run: `held_out_acceptance`, the mean of 1 - TV(p, q) at temperature 1 over held-out answer tokens.

    Raises:
        UsageError: there are too few answers, or sizes that make no model.
    """
    train_answers, held_out = split_answers(job.answers)
    if len(train_answers) < _BATCH_SIZE:
        raise refuse("data", f"at least {_BATCH_SIZE} answers to train on", len(train_answers))
    if hidden_size % 64:
        raise refuse("--hidden-size", "a multiple of 64", hidden_size)
    target, device = job.target, job.target.device
    torch.manual_seed(0)
    model: Any
    if start_from is not None:
        model = AutoModelForCausalLM.from_pretrained(start_from, dtype=torch.float32)
    else:
        heads = hidden_size // 64
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=target.vocab_size,
                hidden_size=hidden_size,
                intermediate_size=3 * hidden_size,
                num_hidden_layers=num_layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=min(target.context_length, 1 << 20),
                tie_word_embeddings=True,
                eos_token_id=sorted(target.eos_token_ids) or None,
                bos_token_id=None,
            )
        )
    model.to(device).train()
    steps_an_epoch = len(train_answers) // _BATCH_SIZE
    num_steps = steps_an_epoch * epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, num_steps))
    job.output.mkdir(parents=True, exist_ok=True)
    state_file, first = job.output / "training.pt", 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True, map_location=device)
        if state["wanted"] == [num_steps, len(train_answers)]:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            first = state["step"]
    for step in range(first, num_steps):
        epoch, index = divmod(step, steps_an_epoch)
        order = random.Random(f"lm {epoch}").sample(range(len(train_answers)), len(train_answers))
        chosen = order[index * _BATCH_SIZE : (index + 1) * _BATCH_SIZE]
        ids, is_output = _batch([train_answers[i] for i in chosen], device)
        kl, tv = _distances(model, target.model, ids, is_output)
        loss = (kl + tv).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % _SAVE_EVERY == 0:
            state = {"wanted": [num_steps, len(train_answers)], "model": model.state_dict(), "step": step + 1,
                     "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}  # fmt: skip
            torch.save(state, job.output / "training.part")
            (job.output / "training.part").replace(state_file)
        job.advance("steps", step + 1, num_steps, f"loss {float(loss.detach()):.3f}")
    model.eval()
    shares = []
    with torch.no_grad():
        for start in range(0, len(held_out), _BATCH_SIZE):
            ids, is_output = _batch(held_out[start : start + _BATCH_SIZE], device)
            shares.append(1.0 - _distances(model, target.model, ids, is_output)[1])
    model.save_pretrained(job.output)
    target.tokenizer.save_pretrained(job.output)
    state_file.unlink(missing_ok=True)
    return {
        "kind": "lm",
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_answers": len(train_answers),
        "num_tokens": sum(len(answer.output_ids) for answer in train_answers),
        "num_held_out": len(held_out),
        "held_out_acceptance": round(float(torch.cat(shares).mean()), 4),
        **job.metadata,
    }


def _rate(step: int, num_steps: int) -> float:
    """A warm-up over the first twentieth, then a cosine."""
    return min((step + 1) / max(num_steps // 20, 1), 0.5 * (1 + math.cos(math.pi * step / num_steps)))


def _batch(answers: Sequence[Answer], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids `[B, T]`, padded behind, and where position t predicts a token of the answer `[B, T]`."""
    texts = [answer.prompt_ids + answer.output_ids for answer in answers]
    longest = max(map(len, texts))
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    is_output = torch.zeros(len(texts), longest, dtype=torch.bool)
    for i, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        ids[i, : len(text)] = torch.tensor(text)
        is_output[i, max(len(answer.prompt_ids) - 1, 0) : len(text) - 1] = True
    return ids.to(device), is_output.to(device)


def _distances(model: Any, target: Any, ids: Tensor, is_output: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p || q) up to p's entropy and TV(p, q) at temperature 1, for each answer token `[N]`."""
    hidden = model.get_decoder()(input_ids=ids, use_cache=False)[0][is_output]
    log_q = functional.linear(hidden, model.get_output_embeddings().weight).log_softmax(-1)
    with torch.no_grad():
        seen = target.get_decoder()(input_ids=ids, use_cache=False)[0][is_output]
        p = target.get_output_embeddings()(seen).float().softmax(-1)[:, : log_q.shape[-1]]
    return -(p * log_q).sum(-1), 1.0 - torch.minimum(p, log_q.exp()).sum(-1)
