"""Programs as configs: which network is trained, on which objectives. No jax here."""

from dataclasses import dataclass

from bert_jax.errors import ConfigError
from bert_jax.models.config import BertConfig, Compute


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """BERT with masked LM and next-sentence prediction: loss = mlm_weight MLM + nsp_weight NSP."""

    model: BertConfig
    mask_token_id: int
    mlm_weight: float = 1.0
    nsp_weight: float = 1.0
    compute: Compute = Compute()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if min(self.mlm_weight, self.nsp_weight) < 0 or self.mlm_weight + self.nsp_weight == 0:
            raise ConfigError(
                f"program.mlm_weight {self.mlm_weight} and program.nsp_weight {self.nsp_weight}: "
                "expected both >= 0 and one > 0"
            )
        if not 0 <= self.mask_token_id < self.model.vocab_size:
            raise ConfigError(
                f"program.mask_token_id {self.mask_token_id} is not an id below "
                f"program.model.vocab_size {self.model.vocab_size}"
            )


@dataclass(frozen=True, kw_only=True)
class LeftToRight:
    """The paper's ablation: the same encoder under a causal mask, predicting the next token."""

    model: BertConfig
    compute: Compute = Compute()  # noqa: RUF009 (frozen)


ProgramConfig = Pretraining | LeftToRight
