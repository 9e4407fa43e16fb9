"""Answers what hayloft.transformers asks of the models of transformers."""

import sys

from transformers import modeling_utils

from . import _core


def attends_itself(model_class):
    """Returns the Error of a model whose attention does not go by transformers' interface."""
    return _core.Error(f"{model_class.__name__}: attends by itself, whatever attn_implementation says, so hayloft would be "
                       "ignored; leave it out for this model")


def require_interface(model):
    """Raises Error where a model of text has an attention of its own, whatever attn_implementation says."""
    model_class = type(model)
    if not hasattr(model.config, "vocab_size"):
        return
    takes = getattr(model_class, "_can_set_attn_implementation", lambda: True)  # False also of classes without a source
    modules = {each.__module__ for each in model_class.__mro__} - {modeling_utils.__name__}
    if not takes() and not any(hasattr(sys.modules.get(each), "ALL_ATTENTION_FUNCTIONS") for each in modules):
        raise attends_itself(model_class)


def implementations(config):
    """Returns the attention of a model and of its parts (text, images), as set_attn_implementation() takes it."""
    own = config._attn_implementation
    parts = {name: implementations(getattr(config, name)) for name in getattr(config, "sub_configs", {})
             if getattr(config, name, None) is not None}
    return {"": own, **parts} if any(each != own for each in parts.values()) else own


def uses_cache(model, generation_config, kwargs):
    """Returns whether generate() makes a cache: as the call says, or else unless one of the configurations says no."""
    if kwargs.get("use_cache") is not None:
        return bool(kwargs["use_cache"])
    configurations = (generation_config, getattr(model, "generation_config", None), model.config)
    return all(getattr(each, "use_cache", None) is not False for each in configurations)
