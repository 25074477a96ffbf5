"""Adapters: small sets of trained parameters that change what a frozen encoder computes."""
