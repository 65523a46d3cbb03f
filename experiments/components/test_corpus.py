from electra_lab.testing import CorpusContract


class TestMyCorpus(CorpusContract):
    name = "my_corpus"

    def options_in(self, folder):
        (folder / "a.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
        return {"path": str(folder / "a.txt")}
