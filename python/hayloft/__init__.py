"""Million-token contexts on small GPUs: K and V stay in host memory, and each new token reads what it attends to.

    import hayloft

    y = hayloft.attend(q, k, v, attn="sparq:r=16:k=128")

    model = hayloft.Model("smollm2.gguf")
    book = model.session(attn="sparq:r=16:k=256").append(open("book.txt").read())
    print(book.fork().generate("Who is the captain?"))

hayloft.transformers plugs the same into the models of Hugging Face transformers.
"""

from ._attend import Attended, attend, search
from ._audit import Audit
from ._contexts import save_context
from ._core import Error, method_names
from ._core import version as __version__
from ._counters import Counters
from ._eval import eval
from ._machine import Machine, default_machine
from ._methods import method
from ._model import Model, Sampling, Session
from ._plan import plan

__all__ = ["Attended", "Audit", "Counters", "Error", "Machine", "Model", "Sampling", "Session", "attend",
           "default_machine", "eval", "method", "method_names", "plan", "save_context", "search"]
