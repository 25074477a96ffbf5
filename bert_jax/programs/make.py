"""From a program's config to the program."""

from bert_jax.programs.config import FineTuning, LeftToRight, MultiTask, Pretraining, ProgramConfig
from bert_jax.programs.fine_tuning import FineTuningProgram
from bert_jax.programs.left_to_right import LeftToRightProgram
from bert_jax.programs.multi_task import MultiTaskProgram
from bert_jax.programs.pretraining import PretrainingProgram
from bert_jax.programs.program import Program


def make_program(config: ProgramConfig) -> Program:
    """The program that a config describes."""
    match config:
        case Pretraining():
            return PretrainingProgram(config)
        case LeftToRight():
            return LeftToRightProgram(config)
        case FineTuning():
            return FineTuningProgram(config)
        case MultiTask():
            return MultiTaskProgram(config)
