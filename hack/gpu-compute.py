"""Computes on every GPU that CUDA shows and prints the UUIDs of those that were right.

Uses the driver's library alone, and torch as well where it is installed.
"""

import ctypes
import importlib.util
import uuid

cuda = ctypes.CDLL("libcuda.so.1")


def check(name, *args):
    status = getattr(cuda, name)(*args)
    if status != 0:
        message = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(message))
        raise SystemExit(f"{name}: {(message.value or b'?').decode()}")


def driver_api(index):
    """Fills memory of a GPU and reads it back; returns the GPU's UUID."""
    words, pattern = 1 << 20, 0xC0FFEE00 + index
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    raw, back = (ctypes.c_ubyte * 16)(), (ctypes.c_uint32 * words)()
    check("cuDeviceGet", ctypes.byref(device), index)
    check("cuDeviceGetUuid", raw, device)
    check("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    check("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * words))
    check("cuMemsetD32_v2", memory, pattern, ctypes.c_size_t(words))
    check("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(4 * words))
    check("cuCtxDestroy_v2", context)
    if any(word != pattern for word in back):
        raise SystemExit(f"GPU {index}: wrong content of memory")
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def with_torch(count):
    """Multiplies matrices of small integers, whose product is exact."""
    import torch

    if torch.cuda.device_count() != count:
        raise SystemExit(f"torch sees {torch.cuda.device_count()} GPUs, the driver {count}")
    a = torch.arange(256 * 256, dtype=torch.float64).reshape(256, 256) % 7
    for index in range(count):
        b = a.to(f"cuda:{index}")
        if not torch.equal((b @ b).cpu(), a @ a):
            raise SystemExit(f"GPU {index}: wrong product")


number = ctypes.c_int()
check("cuInit", 0)
check("cuDeviceGetCount", ctypes.byref(number))
for gpu in [driver_api(index) for index in range(number.value)]:
    print(gpu)
if importlib.util.find_spec("torch"):
    with_torch(number.value)
