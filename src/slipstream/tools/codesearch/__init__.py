"""Code search: definitions, references, calls and imports of a repository, always up to date with its files.

`tool.py` has the tool. `CodeSearch(host_folder(path), Store()).ask(["QuerySet.filter"])` asks without one.
"""

from slipstream.tools.codesearch.answers.answer import SearchAnswer
from slipstream.tools.codesearch.answers.query import Mode
from slipstream.tools.codesearch.files import Files, FolderFiles, host_folder
from slipstream.tools.codesearch.parsing.languages import need_grammars
from slipstream.tools.codesearch.session import CodeSearch
from slipstream.tools.codesearch.store import Store

__all__ = ["CodeSearch", "Files", "FolderFiles", "Mode", "SearchAnswer", "Store", "host_folder", "need_grammars"]
