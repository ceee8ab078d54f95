"""Attribute inference: does a model tell more about its training records' attribute than imputation would?"""
