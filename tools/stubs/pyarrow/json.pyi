from typing import Literal

from ._files import NativeFile
from ._tables import Table
from ._types import Schema

class ReadOptions:
    def __init__(self, use_threads: bool | None = None, block_size: int | None = None) -> None: ...

class ParseOptions:
    def __init__(
        self,
        explicit_schema: Schema | None = None,
        newlines_in_values: bool | None = None,
        unexpected_field_behavior: Literal["ignore", "error", "infer"] | None = None,
    ) -> None: ...

def read_json(
    input_file: NativeFile | str,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
) -> Table: ...
