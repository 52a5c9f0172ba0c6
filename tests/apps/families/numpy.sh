# shellcheck shell=bash
# numpy: writes array bodies through a duplicated descriptor and C stdio, and maps files.

scenario -l python -u save_and_load <<'E'
import os, numpy as np

os.chdir(os.environ["D"])
a = np.arange(300000, dtype=np.float64).reshape(300, 1000)
np.save("a.npy", a)
print(os.path.getsize("a.npy"), (np.load("a.npy") == a).all())
with open("three.npy", "wb") as f:
    for i in range(3):
        np.save(f, a[i])
        print(f.tell())
with open("three.npy", "rb") as f:
    for i in range(3):
        print((np.load(f) == a[i]).all(), f.tell())
np.savez("z.npz", a=a, b=np.ones(5))
z = np.load("z.npz")
print(sorted(z.files), (z["a"] == a).all(), z["b"].sum())
z.close()
np.savez_compressed("c.npz", a=a)
print((np.load("c.npz")["a"] == a).all())
np.save("o.npy", np.array([{"x": 1}, None], dtype=object), allow_pickle=True)
print(np.load("o.npy", allow_pickle=True))
np.savetxt("t.txt", a[:5, :4])
print(np.loadtxt("t.txt").sum(), np.genfromtxt("t.txt").shape)
np.save("f.npy", np.asfortranarray(a))
print(np.load("f.npy").flags.f_contiguous)
for name in ("z.npz", "c.npz"):
    os.remove(name)
try:
    np.load("missing.npy")
except FileNotFoundError:
    print("missing")
E

scenario -l python tofile_and_fromfile <<'E'
import os, numpy as np

os.chdir(os.environ["D"])
a = np.random.default_rng(1).random(700000)
a.tofile("raw")
print(
    os.path.getsize("raw"),
    (np.fromfile("raw") == a).all(),
    np.fromfile("raw", count=3, offset=80).tolist() == a[10:13].tolist(),
)
with open("mixed", "wb") as f:
    f.write(b"header!!")
    a[:1000].tofile(f)
    print(f.tell())
    f.write(b"tail")
    np.int32(7).tofile(f)
with open("mixed", "rb") as f:
    print(f.read(8))
    print(
        (np.fromfile(f, count=1000) == a[:1000]).all(),
        f.tell(),
        f.read(4),
        np.fromfile(f, dtype=np.int32),
    )
with open("raw", "r+b") as f:
    f.seek(800)
    np.zeros(10).tofile(f)
    print(f.tell())
b = np.fromfile("raw")
print(b[99] == a[99], b[100:110].sum(), b[110] == a[110])
a[:3].tofile("text", sep=",")
print(np.fromfile("text", sep=",").tolist() == a[:3].tolist())
with open("raw", "ab") as f:
    np.ones(2).tofile(f)
print(np.fromfile("raw")[-2:], os.path.getsize("raw"))
E

scenario -l python mapped_for_reading <<'E'
import os, numpy as np

os.chdir(os.environ["D"])
a = np.arange(500000, dtype=np.int64).reshape(500, 1000)
np.save("a.npy", a)
m = np.load("a.npy", mmap_mode="r")
print(type(m).__name__, m.shape, (m == a).all(), int(m[123, 456]))
copy = np.array(m)
del m
print((copy == a).all())
c = np.load("a.npy", mmap_mode="c")
c[0, 0] = 99
print(int(c[0, 0]), int(np.load("a.npy")[0, 0]))
r = np.memmap("a.npy", dtype=np.int64, mode="r", offset=128, shape=(1000,))
print(r.sum())
E

scenario -l python checkpoint_loop <<'E'
import os, numpy as np

os.chdir(os.environ["D"])
state = np.zeros((64, 64))
for step in range(1, 41):
    state = np.roll(state, 1, 0) + np.sin(step)
    if step % 10 == 0:
        np.save("tmp.npy", state)
        os.replace("tmp.npy", f"state.{step:03}.npy")
        if step > 20:
            os.remove(f"state.{step - 20:03}.npy")
latest = sorted(x for x in os.listdir() if x.startswith("state"))[-1]
print(latest, (np.load(latest) == state).all())
E
