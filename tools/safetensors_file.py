"""Reading and writing safetensors without their library: name -> (dtype, shape, bytes)."""
import json
import struct


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    body = memoryview(data)[8 + size:]
    return {name: (entry["dtype"], entry["shape"], bytes(body[slice(*entry["data_offsets"])]))
            for name, entry in header.items() if name != "__metadata__"}


def write(path, tensors, metadata=None):
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
