"""The files of clients, in the form of https://platform.openai.com/docs/api-reference/files: uploads, and the answers to batches. They lie
in the folder that Settings.files names, and stay there when the server ends."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import parse_qs

from .. import _core
from ..common.arguments import shown, shown_path
from ..common.forks import Lock
from .calls import Call
from .failures import Refused, new_id

if TYPE_CHECKING:
    from .server import Server
    from .settings import Settings

MOST_RECORDS = 10_000  # maximum number of files, and of batches
BLOCK = 1 << 20
MEASURED = 16 << 20  # after so many bytes of an upload, the room for it is measured again, because others arrive beside it
MOST_FIELD = 64 << 10  # maximum number of bytes of the fields of an upload, beside the file
# JSON Schema of the body of an upload.
UPLOAD = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}},
    "required": ["file", "purpose"],
}
_NAME = re.compile(r"(file-|batch_)[0-9a-f]{24}")

# Key of a record -> type of its value, for the keys that the server reads.
FILE_KEYS: dict[str, type] = {"id": str, "created_at": int, "_owner": str, "bytes": int, "purpose": str}
BATCH_KEYS: dict[str, type] = {
    **dict.fromkeys(("id", "_owner", "status", "endpoint", "input_file_id", "_output", "_errors"), str),
    **{"created_at": int, "request_counts": dict, "_over": bool},
}

Record = dict[str, Any]

# This package writes a warning for each wrong body. The client gets an error, and must not fill the log.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Records:
    """Files of one kind in a folder, each with a record of what is known of it, which is kept as JSON."""

    def __init__(self, folder: Path, keys: Mapping[str, type]) -> None:
        """keys: key -> type of its value, for those that a record cannot lack. Raises ValueError if a file is no such record."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._saving = folder, Lock()
        self._all: dict[str, Record] = {}
        for path in folder.glob("*.json"):
            if _NAME.fullmatch(path.stem):
                try:
                    record = json.loads(path.read_bytes())
                    wrong = [key for key, kind in keys.items() if not isinstance(record[key], kind)]
                    if wrong or record["id"] != path.stem:
                        raise ValueError(f"the value of {wrong[0] if wrong else 'id'} is wrong")
                except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                    what = f"{error} is missing" if isinstance(error, KeyError) else error
                    raise ValueError(f"{shown_path(path)} is no record of this server: {what}. Remove it, or name another folder") from None
                self._all[path.stem] = record

    def __iter__(self) -> Iterator[Record]:
        return iter(sorted(self._all.values(), key=lambda record: (record["created_at"], record.get("order", 0), record["id"])))

    def get(self, name: str) -> Record | None:
        """Returns a record, or None if there is none of this name."""
        return self._all.get(name)

    def save(self, record: Record) -> None:
        """Writes a record, which replaces an older one. Raises OSError."""
        with self._saving():  # or the file would have what another thread has read from the record before
            file, data = _core.NewFile(str(self._folder / f"{record['id']}.json")), json.dumps(record).encode()
            file.write(0, data)
            file.finish()
        self._all[record["id"]] = record

    def hold(self, record: Record) -> None:
        """Adds a record that is about to be saved."""
        self._all[record["id"]] = record

    def check_room(self) -> None:
        """Raises Refused if there are as many records as the server keeps."""
        if len(self._all) >= MOST_RECORDS:
            raise Refused(413, f"this server has {MOST_RECORDS} files or batches, the most that it keeps: delete some", code="storage_full")

    def remove(self, name: str) -> None:
        """Removes a record."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        self._all.pop(name, None)

    def content(self, name: str) -> Path:
        """Returns the path of the file that a record is of."""
        return self._folder / name


class FileStore:
    """The folder of a server's files and batches. It is locked, because two servers would work on the same batches."""

    def __init__(self, folder: str) -> None:
        """Raises OSError and ValueError, which name the folder or what is wrong in it."""
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise OSError(f"cannot keep files in {shown_path(folder)}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise OSError(f"another server keeps its files in {shown_path(folder)}") from None
        except OSError:  # a file system without locks
            pass
        try:
            self.files, self.batches = Records(path / "files", FILE_KEYS), Records(path / "batches", BATCH_KEYS)
            self._uploads = path / "uploads"
            self._uploads.mkdir(exist_ok=True)
            for left in self._uploads.iterdir():  # of a server that was killed
                left.unlink()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise OSError(f"cannot keep files in {shown_path(folder)}: {error}") from None
            raise

    def upload(self) -> Path:
        """Returns the path of a new file whose content is arriving."""
        return self._uploads / new_id("file-")

    def size(self) -> int:
        """Returns the number of bytes of all files."""
        found = 0
        for folder in (self._uploads, self.files.content("")):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # it was removed at this moment
                    found += entry.stat().st_size
        return found

    def add(self, name: str, filename: str, purpose: str, owner: str) -> Record:
        """Makes the record of a file whose content is complete. owner: as in owner_of()."""
        size = self.files.content(name).stat().st_size
        record = {"id": name, "object": "file", "bytes": size, "created_at": int(time.time()), "order": time.time_ns()}
        record |= {"filename": filename, "purpose": purpose, "status": "processed", "_owner": owner}
        self.files.save(record)
        return record

    def close(self) -> None:
        """Unlocks the folder."""
        os.close(self._lock)


def shown_record(record: Record) -> Record:
    """Returns what clients see of a record."""
    return {key: value for key, value in record.items() if key != "order" and not key.startswith("_")}


def owner_of(call: Call) -> str:
    """Returns what a record says of the client whose it is: a hash of the API key (of b"" if the server has no keys)."""
    return _hash_of(call.owner)


def _hash_of(key: bytes) -> str:
    return hmac.digest(key, b"files", "sha256").hex()


def key_of(record: Record, server: Server) -> bytes:
    """Returns the API key of the client whose a record is. If the server no longer has this key, returns a text that is no key, and that no
    other client's records have."""
    keys = (b"", *(key.encode() for key in server.settings.api_keys))
    return next((key for key in keys if _hash_of(key) == record["_owner"]), record["_owner"].encode())


def own(records: Records, call: Call) -> list[Record]:
    """Returns the records of a client."""
    owner = owner_of(call)
    return [record for record in records if record["_owner"] == owner]


def store_of(server: Server) -> FileStore:
    """Returns the server's files. Raises Refused if it keeps none."""
    if server.store is None:
        raise Refused(
            404, "this server keeps no files and takes no batches: pumice serve --files FOLDER names a folder for them", code="no_files"
        )
    return server.store


def found(records: Records, call: Call, what: str) -> Record:
    """Returns the record that a request's path names. Raises Refused if the client has none of this name."""
    name = call.scope["path_params"]["id"]
    if (record := records.get(name)) is None or record["_owner"] != owner_of(call):
        raise Refused(404, f"there is no {what} {shown(name, 80)}", param="id", code="not_found")
    return record


def page_of(call: Call, records: list[Record], most: int) -> dict[str, Any]:
    """Returns a part of a list, as the query's limit and after say. most: maximum of limit."""
    query = {key: values[-1] for key, values in parse_qs(call.scope["query_string"].decode("latin-1")).items()}
    limit = query.get("limit", str(min(most, 20 if most == 100 else most)))
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= most):
        raise Refused(400, f"limit must be a whole number from 1 to {most}, not {shown(limit, 80)}", param="limit")
    if (order := query.get("order", "desc")) not in ("asc", "desc"):
        raise Refused(400, f"order must be 'asc' or 'desc', not {shown(order, 80)}", param="order")
    if "purpose" in query:
        records = [record for record in records if record.get("purpose") == query["purpose"]]
    records = records if order == "asc" else records[::-1]
    names = [record["id"] for record in records]
    if "after" in query:
        if query["after"] not in names:
            raise Refused(404, f"there is no {shown(query['after'], 80)} in this list", param="after", code="not_found")
        records = records[names.index(query["after"]) + 1 :]
    data = [shown_record(record) for record in records[: int(limit)]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": len(records) > len(data)}


# ---------------------------------------------------------------- uploads
class _Form:
    """A body of multipart/form-data that arrives: the part `file` goes to a path, the others are short texts."""

    def __init__(self, kind: str, path: Path) -> None:
        """kind: the header Content-Type."""
        try:
            from python_multipart.multipart import MultipartParser, parse_options_header
        except ImportError as error:
            raise Refused(501, f"uploads need the package python-multipart, which the extra [serve] has ({error})") from None
        name, options = parse_options_header(kind)
        if name != b"multipart/form-data" or not options.get(b"boundary"):
            raise Refused(400, "an upload is multipart/form-data, with the parts file and purpose")
        self._options_of, self._path = parse_options_header, path
        self.fields: dict[str, bytes] = {}
        self.filename: str | None = None
        self._header, self._value, self._headers = b"", b"", dict[bytes, bytes]()
        self._file: BinaryIO | None = None
        self._name, self._held = "", 0
        self.whole = False  # whether the boundary behind the last part has come
        calls = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end", "headers_finished", "end")
        callbacks: Any = {f"on_{each}": getattr(self, f"_{each}") for each in calls}
        self._parser = MultipartParser(options[b"boundary"], callbacks)

    def write(self, data: bytes) -> None:
        """Reads a part of the body. Raises Refused."""
        from python_multipart.exceptions import FormParserError

        try:
            self._parser.write(data)
        except FormParserError as error:
            raise Refused(400, f"the body is not multipart/form-data: {error}") from None

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _part_begin(self) -> None:
        self._headers, self._header, self._value = {}, b"", b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header, self._value = b"", b""

    def _headers_finished(self) -> None:
        _, options = self._options_of(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == "file":
            if self._file is not None:
                raise Refused(400, "the body has two parts 'file'", param="file")
            self.filename = options.get(b"filename", b"").decode("utf-8", "replace")[:255] or "upload"
            self._file = open(self._path, "wb")  # noqa: SIM115  # close() closes it
        elif not self._name:
            raise Refused(400, "a part of the body has no name")
        elif self._name != "purpose":  # at once, so that a body of many parts takes no memory
            raise Refused(400, f"unknown field {shown(self._name, 80)}: an upload has file and purpose", param=self._name[:200])
        elif self._name in self.fields:
            raise Refused(400, f"the body has two parts {shown(self._name, 80)}", param=self._name)
        else:
            self.fields[self._name] = b""

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            assert self._file is not None
            self._file.write(data[start:end])
            return
        self._held += end - start
        if self._held > MOST_FIELD:
            raise Refused(413, f"the fields beside the file have more than {MOST_FIELD} bytes")
        self.fields[self._name] += data[start:end]

    def _part_end(self) -> None:
        self._name = ""

    def _end(self) -> None:
        self.whole = True


async def receive_upload(call: Call) -> None:
    """Receives the body of an upload, and stores its file. Raises Refused and ClientGone."""
    store, settings = store_of(call.server), call.server.settings
    most = settings.max_file + 2 * MOST_FIELD  # the body is larger than the file
    call.check_length(most)
    store.files.check_room()
    path = store.upload()
    form = _Form(call.headers.get("content-type", ""), path)
    try:
        room, size = 0, MEASURED  # size: number of bytes that have come since the room was measured
        async for part in call.parts(most, settings.body_seconds):
            if size >= MEASURED:
                room, size = settings.max_files - await call.server.aside(store.size), 0
            size += len(part)
            if size > room:
                raise _full(settings)
            await call.server.aside(form.write, part)
        form.close()
        call.upload = await call.server.aside(_stored, store, form, path, settings, owner_of(call))
    finally:
        form.close()
        path.unlink(missing_ok=True)


def _full(settings: Settings) -> Refused:
    return Refused(413, f"the files of this server have {settings.max_files} bytes, the most that it keeps", code="storage_full")


def _stored(store: FileStore, form: _Form, path: Path, settings: Settings, owner: str) -> Record:
    if not form.whole:
        raise Refused(400, "the body ends before the boundary that ends the last part: send it again, whole")
    if form.filename is None:
        raise Refused(400, "the part 'file' is missing", param="file")
    purpose = form.fields.get("purpose", b"").decode("utf-8", "replace")
    if purpose != "batch":
        raise Refused(400, f"purpose must be 'batch', not {shown(purpose, 80)}: this server has files for batches alone", param="purpose")
    if (size := path.stat().st_size) > settings.max_file:
        raise Refused(413, f"the file has {size} bytes, and a file may have {settings.max_file}", param="file")
    if store.size() > settings.max_files:
        raise _full(settings)
    name = new_id("file-")
    os.replace(path, store.files.content(name))
    try:
        return store.add(name, form.filename, purpose, owner)
    except BaseException:
        store.files.content(name).unlink()
        raise


# ---------------------------------------------------------------- handlers
async def upload(call: Call) -> None:
    """Stores a file (multipart/form-data with `file` and `purpose`, which is "batch")."""
    await call.answer_small(shown_record(call.upload))


async def listed(call: Call) -> None:
    """Lists the files, those of answers included."""
    await call.answer(page_of(call, own(store_of(call.server).files, call), MOST_RECORDS))


async def one(call: Call) -> None:
    """Describes a file."""
    await call.answer_small(shown_record(found(store_of(call.server).files, call, "file")))


async def content(call: Call) -> None:
    """Answers with the content of a file."""
    store = store_of(call.server)
    record = found(store.files, call, "file")
    file: BinaryIO = await call.server.aside(store.files.content(record["id"]).open, "rb")

    async def parts() -> AsyncIterator[bytes]:
        left = record["bytes"]
        while left and (part := await call.server.aside(file.read, min(left, BLOCK))):
            left -= len(part)
            yield part

    with file:
        await call.send_parts(parts(), record["bytes"], "application/octet-stream")


async def delete(call: Call) -> None:
    """Deletes a file. Refused while a batch uses it."""
    store = store_of(call.server)
    record = found(store.files, call, "file")
    if any(batch["input_file_id"] == record["id"] and not batch["_over"] for batch in store.batches):
        raise Refused(400, f"a batch that is not over uses {record['id']}: cancel it, or wait", param="id", code="file_in_use")
    store.files.remove(record["id"])
    await call.server.aside(lambda: store.files.content(record["id"]).unlink(missing_ok=True))
    await call.answer_small({"id": record["id"], "object": "file", "deleted": True})
