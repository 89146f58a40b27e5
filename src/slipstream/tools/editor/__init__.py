"""edit: one tool with the commands view, create, str_replace, insert and undo. `Toolset.named(("edit", "finish"))`."""

from slipstream.tools.editor.editor import edit, make_edit

__all__ = ["edit", "make_edit"]
