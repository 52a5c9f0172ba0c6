"""cairn.fsspec: files of the job by the protocol cairn://."""

import unittest

from harness import JobTest, lacks


@unittest.skipIf(lacks("fsspec", "2023.1"), lacks("fsspec", "2023.1"))
class FileSystem(JobTest):
    def test_files_are_those_below_the_prefix(self):
        self.in_job("""
            import cairn.fsspec, fsspec
            fsspec.register_implementation("cairn", cairn.fsspec.CairnFileSystem, clobber=True)
            with fsspec.open("cairn://run/step1/model.pt", "wb") as out:
                out.write(b"one")
            assert open("/cairn/run/step1/model.pt", "rb").read() == b"one"
            files = fsspec.filesystem("cairn")
            assert files.glob("cairn://run/*/*.pt") == ["/cairn/run/step1/model.pt"], files.glob("cairn://run/*/*.pt")
            assert files.cat("cairn://run/step1/model.pt") == files.cat("/cairn/run/step1/model.pt") == b"one"
            files.mv("cairn://run/step1/model.pt", "cairn://last.pt")
            files.rm("cairn://run", recursive=True)
            assert os.listdir("/cairn") == ["last.pt"], os.listdir("/cairn")
        """)
        self.assertEqual((self.persist / "last.pt").read_bytes(), b"one")

    @unittest.skipIf(lacks("torch", "2.4"), lacks("torch", "2.4"))
    def test_distributed_checkpoints_take_the_protocol(self):
        self.in_job("""
            import warnings
            warnings.simplefilter("ignore")
            import fsspec, torch
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
            import cairn.fsspec
            fsspec.register_implementation("cairn", cairn.fsspec.CairnFileSystem, clobber=True)
            dcp.save({"a": torch.ones(1000)}, storage_writer=FsspecWriter("cairn://run/step3"), no_dist=True)
            found = {"a": torch.zeros(1000)}
            dcp.load(found, storage_reader=FsspecReader("cairn://run/step3"), no_dist=True)
            assert found["a"].sum() == 1000 and os.path.exists("/cairn/run/step3/.metadata")
        """)

    @unittest.skipIf(lacks("pandas", "2.0"), lacks("pandas", "2.0"))
    def test_pandas_takes_the_protocol(self):
        self.in_job("""
            import fsspec, pandas
            import cairn.fsspec
            fsspec.register_implementation("cairn", cairn.fsspec.CairnFileSystem, clobber=True)
            pandas.DataFrame({"a": [1, 2]}).to_csv("cairn://tables/x.csv")
            assert pandas.read_csv("cairn://tables/x.csv")["a"].tolist() == [1, 2]
            assert os.path.exists("/cairn/tables/x.csv")
        """)

    def test_transaction_ends_in_one_rename_of_each_file(self):
        self.in_job("""
            import cairn.fsspec
            files = cairn.fsspec.CairnFileSystem()
            files.pipe("cairn://last.pt", b"old")
            seen = []
            def watch(event, arguments):
                if event == "os.rename" and str(arguments[1]).startswith("/cairn/"):
                    seen.append(str(arguments[1]))
            sys.addaudithook(watch)
            with files.transaction:
                for name in ("last.pt", "more.pt"):
                    with files.open(f"cairn://{name}", "wb") as out:
                        out.write(b"new")
                assert open("/cairn/last.pt", "rb").read() == b"old" and not os.path.exists("/cairn/more.pt")
            assert seen == ["/cairn/last.pt", "/cairn/more.pt"], seen
            assert sorted(os.listdir("/cairn")) == ["last.pt", "more.pt"], os.listdir("/cairn")
        """)
        self.assertEqual((self.persist / "last.pt").read_bytes(), b"new")

    def test_transaction_that_fails_leaves_what_was_there(self):
        self.in_job("""
            import cairn.fsspec
            files = cairn.fsspec.CairnFileSystem()
            files.pipe("cairn://last.pt", b"old")
            try:
                with files.transaction:
                    with files.open("cairn://last.pt", "wb") as out:
                        out.write(b"new")
                    raise KeyError
            except KeyError:
                pass
            assert os.listdir("/cairn") == ["last.pt"] and open("/cairn/last.pt", "rb").read() == b"old"
        """)

    def test_transaction_of_a_killed_process_reaches_nothing(self):
        self.in_job("""
            import cairn.fsspec
            files = cairn.fsspec.CairnFileSystem()
            files.pipe("cairn://last.pt", b"old")
            files.start_transaction()
            out = files.open("cairn://last.pt", "wb")
            out.write(b"new")
            os.kill(os.getpid(), signal.SIGKILL)
        """, expected=137)
        self.in_job("""
            assert open("/cairn/last.pt", "rb").read() == b"old"
        """, expected=None)  # The file of the dead writer is still in the store.
        self.assertEqual([path for path in (self.persist / ".fsspec-pending").rglob("*")], [])

    def test_outside_a_job_paths_are_refused(self):
        import errno

        import cairn.fsspec
        with self.assertRaises(OSError) as raised:
            cairn.fsspec.CairnFileSystem().ls("cairn://")
        self.assertEqual(raised.exception.errno, errno.ENODEV)


if __name__ == "__main__":
    unittest.main()
