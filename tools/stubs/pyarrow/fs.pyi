from typing import ClassVar

class FileType:
    File: ClassVar[FileType]
    NotFound: ClassVar[FileType]

class FileInfo:
    def __init__(self, path: str, type: FileType) -> None: ...

class FileSystem: ...
class FileSystemHandler: ...

class PyFileSystem(FileSystem):
    def __init__(self, handler: FileSystemHandler) -> None: ...
