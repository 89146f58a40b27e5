"""Made tasks: what a teacher or a report may ask about tasks of `slipstream tasks make`, and of the public SWE formats.

import slipstream as ss

ss.made_tasks.level_of(task.id), ss.made_tasks.reference_edits(task)
"""

from slipstream.tasks.factory.levels import Level, level_of, made_id
from slipstream.tasks.factory.package.suite import Function, functions_of
from slipstream.tasks.factory.parts import Part, read_part
from slipstream.tasks.factory.statement import names_in
from slipstream.tasks.reference_edits import ReferenceEdit, reference_edits

__all__ = [
    "Function",
    "Level",
    "Part",
    "ReferenceEdit",
    "functions_of",
    "level_of",
    "made_id",
    "names_in",
    "read_part",
    "reference_edits",
]
