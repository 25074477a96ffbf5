"""Counts the floating-point operations of the RoBERTa encoder: those of BERT's layers."""

from bert_jax.models.bert.flops import encoder_flops as encoder_flops
