"""What the checks on GPU machines share: containers of runc, without an engine.

Their root file systems are made here and mounted in a mount namespace that ends
with the process. For a machine with NVIDIA GPUs, root and Python; no compiler,
no Go, no network: `make gpu-bundle` builds what else it takes into bin/.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
BIN = TOP / "bin"
GPU = BIN / "gpu"


def die(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def need(*programs):
    if os.geteuid() != 0:
        die("needs root: it mounts file systems and runs containers")
    for name in programs:
        if not (BIN / name).exists():
            die(f"bin/{name} is missing: make gpu-bundle")


def enter_namespace():
    """Everything mounted from here on goes with this process."""
    if os.environ.get("PODRAIL_INSIDE") != "1":
        os.environ["PODRAIL_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--", sys.executable, *sys.argv])


def run(*command, check=True, **more):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if check and result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: status {result.returncode}: {result.stderr.strip()[-600:]}")
    return result


def host_gpus():
    """What the driver says, with no code in common with cdi-gen: UUIDs in PCI order."""
    files = sorted(pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [re.search(r"GPU UUID:\s*(\S+)", f.read_text())[1] for f in files]


class Workspace:
    """A tmpfs with root file systems, bundles and specs."""

    def __enter__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="podrail."))
        run("mount", "-t", "tmpfs", "tmpfs", self.dir)
        self.count = 0
        return self

    def __exit__(self, *_):
        for _ in range(3):
            if run("umount", "-R", self.dir, check=False).returncode == 0:
                break
        else:
            run("umount", "-Rl", self.dir, check=False)
        os.rmdir(self.dir)

    def overlay(self, name, without=()):
        """This machine's root as a container's, without some files."""
        base = self.dir / name
        for part in ("upper", "work", "rootfs"):
            (base / part).mkdir(parents=True)
        run("mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={base}/upper,workdir={base}/work", "overlay", base / "rootfs")
        for path in without:
            (base / "rootfs" / path.lstrip("/")).unlink(missing_ok=True)
        return base / "rootfs"

    def minimal(self, name, red_hat):
        """A root file system with a C library, where the distribution's loader looks, and the probe."""
        rootfs = self.dir / name
        for part in ("proc", "dev", "sys", "tmp", "etc", "lib64", "usr/bin"):
            (rootfs / part).mkdir(parents=True)
        loader = pathlib.Path("/lib64/ld-linux-x86-64.so.2").resolve().read_bytes()
        libraries = rootfs / ("usr/lib64" if red_hat else "usr/lib/x86_64-linux-gnu")
        if red_hat:
            # Debian's loader with Red Hat's directories: there is room for slashes.
            old = b"\0/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0"
            new = b"\0/lib64////////////////\0/usr/lib64////////////////\0/no//\0/usr/no//\0"
            if loader.count(old) != 1:
                raise RuntimeError("this machine's loader has not Debian's directories")
            loader = loader.replace(old, new)
        (rootfs / "lib64/ld-linux-x86-64.so.2").write_bytes(loader)
        (rootfs / "lib64/ld-linux-x86-64.so.2").chmod(0o755)
        libraries.mkdir(parents=True, exist_ok=True)
        for lib in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"):
            shutil.copy(f"/lib/x86_64-linux-gnu/{lib}", libraries / lib)
        shutil.copy(GPU / "cuda-probe", rootfs / "usr/bin/cuda-probe")
        return rootfs

    def bundle(self, rootfs, specs, device, command, read_only=False):
        """An OCI bundle with a CDI device, as an engine makes one; no device for None."""
        self.count += 1
        bundle = self.dir / f"bundle{self.count}"
        bundle.mkdir()
        config = json.dumps(oci_config(rootfs, command, read_only))
        if device:
            config = run(GPU / "oci-with-cdi", specs, device, input=config).stdout
        (bundle / "config.json").write_text(config)
        return bundle

    def start(self, bundle):
        """Runs a bundle's container to its end."""
        return run(GPU / "runc", "--root", self.dir / "runc", "run", "--bundle", bundle, f"podrail-{os.getpid()}-{bundle.name}",
                   check=False, stdin=subprocess.DEVNULL)

    def container(self, *what, **more):
        """Runs a command in a container with a CDI device; no device for None."""
        return self.start(self.bundle(*what, **more))


def oci_config(rootfs, command, read_only):
    """An OCI configuration like an engine's default, without devices."""
    capabilities = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": True, "args": command,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"],
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "root": {"path": str(rootfs), "readonly": read_only},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount")],
        },
    }
