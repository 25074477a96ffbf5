"""Re-exports the config types of models until all importers name their own modules."""

from bert_jax.models.bert.config import BertConfig as BertConfig
from bert_jax.models.bert.config import BertSize as BertSize
from bert_jax.models.encoder import EncoderConfig as EncoderConfig
from bert_jax.models.heads.config import MultipleChoiceHead as MultipleChoiceHead
from bert_jax.models.heads.config import QuestionAnsweringHead as QuestionAnsweringHead
from bert_jax.models.heads.config import RegressionHead as RegressionHead
from bert_jax.models.heads.config import SequenceClassificationHead as SequenceClassificationHead
from bert_jax.models.heads.config import TaskHead as TaskHead
from bert_jax.models.heads.config import TokenClassificationHead as TokenClassificationHead
from bert_jax.models.heads.config import head_param_name as head_param_name
from bert_jax.models.heads.config import num_outputs as num_outputs
from bert_jax.models.heads.config import reads_first_token as reads_first_token
from bert_jax.models.layers.config import Activation as Activation
from bert_jax.models.layers.config import ComputeConfig as ComputeConfig
from bert_jax.models.layers.config import FullRemat as FullRemat
from bert_jax.models.layers.config import Gelu as Gelu
from bert_jax.models.layers.config import GeluTanh as GeluTanh
from bert_jax.models.layers.config import LearnedPositions as LearnedPositions
from bert_jax.models.layers.config import NoRemat as NoRemat
from bert_jax.models.layers.config import NormalInit as NormalInit
from bert_jax.models.layers.config import PallasAttention as PallasAttention
from bert_jax.models.layers.config import SaveDots as SaveDots
from bert_jax.models.layers.config import Scanned as Scanned
from bert_jax.models.layers.config import SinusoidalInit as SinusoidalInit
from bert_jax.models.layers.config import Unrolled as Unrolled
from bert_jax.models.layers.config import XlaAttention as XlaAttention
from bert_jax.models.layers.config import check_dropout as check_dropout

bert_config = BertConfig.from_size
