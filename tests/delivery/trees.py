"""Runs that succeed: trees that real programs write, and unusual names, kinds and changes."""

import os

from course import register, stage, start, succeed
from harness import Skipped, check_kept, check_success, delivered, differences, expect
from worker import tree

test, tests = register("trees")


# Names that look like something else.

@test()
def names_that_look_like_pointers(box):
    texts = {"last_step": "7", "blastp.count": "99", "latest": "5", "latest.txt": "ckpt-12",
             "checkpoint": 'model_checkpoint_path: "ckpt-9"', "d/latest": "/nowhere/x",
             "latest_checkpointed_iteration.txt": "400", "LAST": "../x", "current": "3"}
    names = ["model.0", "model.1", "ckpt-7.index", "restart.100", "restart.200", "core.12",
             "nohup.out", "part-00001", "x.tmp", "x~", "#x#", ".hidden", "lost+found", "tmp"]
    steps = [["mkdir", "d"], *(["text", name, text + "\n"] for name, text in texts.items())]
    stage(box, succeed(box, [*steps, *(["put", name, 1, 50] for name in names)]))


@test()
def links_that_look_like_pointers(box):
    """The links lead to a missing step, or to themselves, as they may on a disk."""
    links = {"latest": "step.9", "last": "step.1", "step.2": "step.2", "d/log": "step.7",
             "d/step.1": "step.2", "best.ckpt": "ckpt-12", "current": "/scratch/ckpt-3"}
    steps = [["mkdir", "d"], ["put", "step.1", 1, 90]]
    stage(box, succeed(box, [*steps, *(["symlink", to, name] for name, to in links.items())]))


@test()
def names_of_many_bytes(box):
    names = ["new\nline", "tab\t", " ", "-rf", "\\", "*?[a]", '"', "'", "ünï\u2603", "\udcff\udcfe",
             "x" * 255, "é" * 127, "..x", "a" * 250 + ".tmp", "%s%n", "C:", "$HOME", "a=b", "a:b",
             "{step}", "\x01", "\x7f"]
    steps = [["put", name, number, 10 + number] for number, name in enumerate(names)]
    long = "long/" + "y" * 255
    steps += [["mkdir", "long"], ["mkdir", long], ["put", long + "/" + "z" * 255, 5, 5],
              ["mkdir", "dir\n"], ["put", "dir\n/\n", 6, 6], ["symlink", "t\n\udcff", "to\n"]]
    stage(box, succeed(box, steps))


@test()
def names_as_cairns_own(box):
    """A disk takes these names. Cairn may refuse to drain them, but not in a run that ends with 0."""
    names = ["cairn-manifest.mine.json", ".cairn-mine", "d/cairn-manifest.x.json", "d/.x.cairn-y"]
    box.plan([["mkdir", "d"], *(["put", name, 3, 30] for name in names)])
    result = box.run(box.worker())
    want = box.on_disk()
    missing = [path for path, _ in differences(want, tree(box.out)) if path in want]
    if result.code == 75:
        expect(not [path for path in missing if path not in result.said], "75, but not named")
        expect(box.store_is_kept(), "75, but no store")
    else:
        expect(result.code == 0 and not missing, f"exit code {result.code}, missing {missing}")


@test()
def slots_and_latest(box):
    steps = []
    for step in range(4):
        steps += [["put", f"state.{step % 2}.{rank}", step, 30000] for rank in (0, 1)]
        steps += [["text", "latest", f"{step % 2}\n"]]
    stage(box, succeed(box, [*steps, ["put", "state.0.0.bak", 1, 10]]))


@test()
def text_that_names_a_lower_slot(box):
    """The newest slot is 1, and a text with another meaning says 0: nobody may change it."""
    steps = [["put", "state.0", 1, 300], ["put", "state.1", 2, 300],
             ["text", "latest.other", "0\n"]]
    stage(box, succeed(box, steps))


def tensorflow(last, whole):
    """Steps of checkpoints 1 to `last`; the index of the last one only if `whole`."""
    steps = [["mkdir", "tf"]]
    for step in range(1, last + 1):
        steps += [["put", f"tf/ckpt-{step}.data-00000-of-00001", step, 50000]]
        if step < last or whole:
            steps += [["put", f"tf/ckpt-{step}.index", step, 300],
                      ["text", "tf/c.tmp", f'model_checkpoint_path: "ckpt-{step}"\n'],
                      ["rename", "tf/c.tmp", "tf/checkpoint"]]
    return steps


@test()
def tensorflow_checkpoints(box):
    stage(box, succeed(box, tensorflow(3, True)))


@test(small=False)
def retained_few_in_the_store_but_all_outside(box):
    """Files that --retain removes from the store count as existing, since the program kept them."""
    steps = [*tensorflow(4, True), ["meet", "await-all"]]
    arrived = {"await-all": ["tf/checkpoint", "tf/ckpt-4.index"]}
    run = start(box, steps, "--retain", "count=1", "--settle", "300ms", outside=arrived)
    check_success(box, box.finish(run), box.on_disk())


@test()
def namd_restarts(box):
    steps = []
    for step in range(3):
        for kind in ("coor", "vel", "xsc"):
            name = f"run.restart.{kind}"
            steps += [["rename", name, name + ".old"]] if step else []
            steps += [["put", name, step * 7 + len(kind), 9000]]
    steps += [["open", "dcd", "run.dcd", "a"], ["write", "dcd", 1, 30000]]
    stage(box, succeed(box, [*steps, ["put", "run.coor", 1, 9]]))


# Kinds, modes, sizes.

@test()
def links_modes_and_times(box):
    steps = [["mkdir", "d", 0o750], ["mkdir", "e"], ["mkdir", "empty"],
             ["mkdir", "empty/er", 0o700], ["put", "zero", 1, 0],
             ["put", "d/a", 1, 5000], ["link", "d/a", "d/b"], ["link", "d/a", "e/c"],
             ["symlink", "d/a", "to-file"], ["symlink", "d", "to-folder"],
             ["symlink", "gone", "to"], ["symlink", "/etc/passwd", "out"],
             ["symlink", "../..", "up"]]
    for mode in (0o444, 0o000, 0o777, 0o600, 0o4755, 0o2755, 0o1644, 0o200):
        steps += [["put", f"rights {mode:o}", mode, 20], ["chmod", f"rights {mode:o}", mode]]
    for ns in (0, 1, 123_456_789, 1_000_000_000_123_456_789, 4_102_444_800_000_000_001, -5):
        steps += [["put", f"time {ns}", 1, 20], ["utime", f"time {ns}", ns]]
    expect_root()
    stage(box, succeed(box, steps))


@test()
def folders_with_modes(box):
    """A folder may lose its permissions after its files were made."""
    steps = []
    for mode in (0o500, 0o000, 0o1777, 0o2775, 0o711):
        steps += [["mkdir", f"rights {mode:o}"], ["put", f"rights {mode:o}/x", mode, 10]]
        steps += [["chmod", f"rights {mode:o}", mode]]
    expect_root()
    stage(box, succeed(box, steps))


def expect_root():
    if os.geteuid() != 0:
        raise Skipped("only root can read files of mode 0000 to compare them")


@test()
def extended_attributes(box):
    try:
        os.setxattr(box.scratch, "user.test", b"1")
    except OSError:
        raise Skipped("the scratch folder's file system takes no extended attributes") from None
    steps = [["mkdir", "d"], ["put", "d/a", 1, 900], ["link", "d/a", "b"], ["put", "zero", 1, 0],
             ["xattr", "d/a", "k", "v" * 300], ["xattr", "d", "k", "w"], ["xattr", "zero", "é", ""]]
    stage(box, succeed(box, steps))


@test()
def sparse_files(box):
    """The larger file is longer than the tier."""
    steps = [["open", "f", "sparse", "x"], ["cut", "f", 200 << 20],
             ["pwrite", "f", 90 << 20, 1, 100],
             ["open", "g", "hole", "x"], ["cut", "g", 100001], ["put", "cut", 3, 70000],
             ["truncate", "cut", 40000], ["truncate", "cut", 60000], ["close", "f"], ["close", "g"]]
    stage(box, succeed(box, steps))


@test()
def deep_folders(box):
    path, steps = "", []
    for level in range(80):
        path += f"level-{level:020}/"
        steps += [["mkdir", path[:-1]]]
        steps += [["put", path + "f", level, 30]] if level % 10 == 9 else []
    stage(box, succeed(box, steps))


@test()
def many_numbered_files(box):
    steps = [["put", f"many/{number}", number, 4] for number in range(300)]
    stage(box, succeed(box, [["mkdir", "many"], *steps]))


@test(small=False)
def full_store_delivers_what_it_took(box):
    """The program goes on after ENOSPC and succeeds: the part it could write is an ordinary file."""
    box.plan([["put", "a", 1, 90], ["on", 0, ["open", "f", "big", "x"]],
              ["on", 0, ["write", "f", 2, 80 << 20]], ["finish"], ["look", "done"]])
    result = box.run(box.worker())
    done = box.report("done")
    expect(done["big"]["size"] < 80 << 20, "the tier of 64 MiB took 80 MiB")
    check_success(box, result, done, done, may_keep=True)


# Changes after a file has arrived outside.

@test()
def folder_renamed_after_it_arrived(box):
    steps = [["mkdirs", "d/sub"], ["mkdir", "d/none"], ["put", "d/a", 1, 900],
             ["put", "d/sub/b", 2, 900], ["meet", "await-1"], ["rename", "d", "e"], ["mkdir", "d"],
             ["put", "d/a", 3, 30], ["rename", "e/sub", "d/sub"]]
    stage(box, succeed(box, steps, outside={"await-1": ["d/a", "d/sub/b"]}))


@test()
def folder_renamed_over_an_empty_one_after_it_arrived(box):
    steps = [["mkdirs", "d/f"], ["mkdir", "e"], ["put", "e/b", 1, 0], ["mkdir", "g"],
             ["meet", "await-1"], ["rename", "e", "d/f"], ["rename", "d", "g"]]
    stage(box, succeed(box, steps, outside={"await-1": ["e/b", "d/f", "g"]}))


@test()
def folders_renamed_and_removed_while_they_are_drained(box):
    """The agent makes a folder outside at the moment when the program renames it."""
    steps = [["mkdir", "x"]]
    for number in range(150):
        name = f"f{number:x}g"
        steps += [["mkdir", name], ["put", f"{name}/b", number, 0], ["put", f"{name}/c", number, 9]]
        steps += [["put", f"x/{other}{number}", 1, 900] for other in "pqrs"[:number % 5]]
        steps += [["rename", name, f"x/{name}"]] if number % 3 else [
            ["unlink", f"{name}/b"], ["unlink", f"{name}/c"], ["rmdir", name]]
    succeed(box, steps)


@test()
def files_changed_late(box):
    """At the very end, files are removed, renamed, swapped, truncated, or change only attributes."""
    names = ["gone", "old", "swap-a", "swap-b", "cut", "mode", "time", "middle", "step.1", "link"]
    steps = [["put", name, number, 800] for number, name in enumerate(names)]
    steps += [["link", "link", "link2"], ["meet", "await-1"],
              ["unlink", "gone"], ["rename", "old", "new"], ["rename", "step.1", "step.2"],
              ["rename", "swap-a", "s"], ["rename", "swap-b", "swap-a"], ["rename", "s", "swap-b"],
              ["truncate", "cut", 100], ["chmod", "mode", 0o400],
              ["utime", "time", 1234567890123456789],
              ["open", "f", "middle", "r+"], ["pwrite", "f", 5, 77, 5], ["close", "f"],
              ["open", "g", "link2", "a"], ["write", "g", 8, 8]]
    stage(box, succeed(box, steps, outside={"await-1": names + ["link2"]}))


@test()
def kinds_changed_after_they_arrived(box):
    """File, folder and link take each other's names."""
    steps = [["mkdir", "target"], ["put", "target/y", 1, 9],
             ["put", "file-folder", 1, 90], ["put", "file-link", 3, 90],
             ["mkdir", "folder-file"], ["put", "folder-file/x", 2, 90],
             ["mkdir", "folder-link"], ["put", "folder-link/y", 2, 9],
             ["symlink", "x", "link-file"], ["symlink", "x", "link-link"], ["meet", "await-1"],
             ["unlink", "file-folder"], ["mkdir", "file-folder"], ["put", "file-folder/z", 4, 90],
             ["unlink", "file-link"], ["symlink", "target", "file-link"],
             ["unlink", "folder-file/x"], ["rmdir", "folder-file"], ["put", "folder-file", 5, 90],
             ["unlink", "folder-link/y"], ["rmdir", "folder-link"],
             ["symlink", "target", "folder-link"], ["unlink", "link-file"],
             ["put", "link-file", 6, 90], ["unlink", "link-link"], ["symlink", "z", "link-link"]]
    arrived = ["file-folder", "folder-file/x", "file-link", "link-file", "folder-link/y"]
    stage(box, succeed(box, steps, outside={"await-1": arrived}))


@test()
def staged_store_is_changed_and_delivered(box):
    succeed(box, [["put", "a", 1, 900], ["put", "step.1", 2, 900], ["put", "step.2", 3, 900],
                  ["mkdir", "d"], ["put", "d/x", 4, 10], ["symlink", "a", "l"],
                  ["put", "b", 5, 90]])
    want = succeed(box, [["unlink", "step.1"], ["rename", "d", "e"], ["open", "f", "a", "a"],
                         ["write", "f", 9, 9], ["unlink", "l"], ["truncate", "b", 0]], "--stage")
    stage(box, want, "--stage=on-demand")


# Foreign files outside, and files left out on request.

@test()
def foreign_files_outside_stay(box):
    """Existing files of the persist directory that the program never had do not belong to Cairn."""
    (box.out / "latest").write_text("12\n")
    (box.out / "d").mkdir()
    (box.out / "d" / "step.5").write_bytes(b"foreign")
    (box.out / "link").symlink_to("/etc")
    before = delivered(box.out)
    box.plan([["mkdir", "d"], ["put", "d/step.6", 1, 60], ["put", "mine", 1, 60]])
    result = box.run(box.worker())
    check_success(box, result, {**before, **box.on_disk()})


@test()
def folder_outside_has_the_name_of_a_file(box):
    """The folder is set aside as a whole, and the file is drained."""
    (box.out / "taken").mkdir()
    (box.out / "taken" / "foreign").write_text("x")
    box.plan([["put", "taken", 1, 60], ["put", "free", 2, 60]])
    result = box.run(box.worker())
    expect(result.code == 0, f"exit code {result.code}: {result.last_line()}")
    foreign = box.out / "cairn-before.job" / "taken" / "foreign"
    expect(foreign.exists() and foreign.read_text() == "x", "a foreign file was removed")
    expect((box.out / "taken").is_file(), "the file is not delivered")
    expect(foreign.parent.parent.name in result.said, "nobody says where the folder is")


@test()
def folder_outside_cannot_be_set_aside(box):
    """The drain cannot put a file there: exit code 75, the store kept, the file named, nothing foreign removed."""
    (box.out / "taken").mkdir()
    (box.out / "cairn-before.job").write_text("in the way")
    foreign = box.out / "taken" / "foreign"
    foreign.write_text("x")
    box.plan([["put", "taken", 1, 60], ["put", "free", 2, 60]])
    result = box.run(box.worker())
    expect(foreign.exists() and foreign.read_text() == "x", "a foreign file was removed")
    expect(result.code == 75, f"exit code {result.code} though `taken` cannot be there")
    check_kept(box, result, box.on_disk())


@test()
def only_tagged_files_are_left_out(box):
    steps = [["mkdir", "cache"], ["put", "cache/big", 1, 900], ["put", "cache.d", 1, 9],
             ["put", "x.tmp", 2, 90], ["put", "y.tmp", 2, 9], ["put", "x.tmp.keep", 3, 90],
             ["mkdir", "d"], ["put", "d/z", 4, 90], ["put", "step.1", 5, 90]]
    left_out = ("x.tmp", "y.tmp", "cache/big")
    steps += [["put", "cache.e", 7, 9], ["mkdir", "cache/sub"], ["put", "cache/sub/deep", 8, 9]]
    succeed(box, steps, "--temporary", "*.tmp", "--reusable", "cache/b*",
            without=lambda path: path in left_out)


@test()
def folder_of_left_out_files_is_delivered(box):
    """The pattern matches the files but not the folder itself."""
    succeed(box, [["mkdir", "cache"], ["put", "cache/a.tmp", 1, 900]], "--temporary", "*/*.tmp",
            without=lambda path: path.endswith(".tmp"))
