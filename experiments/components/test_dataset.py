from electra_lab.testing import DatasetContract


class TestMyDataset(DatasetContract):
    name = "my_dataset"

    def options_in(self, folder):
        (folder / "train.tsv").write_text("good\tA fine day.\nbad\tIt rains.\n", encoding="utf-8")
        (folder / "validation.tsv").write_text("good\tThe sun shines.\n", encoding="utf-8")
        return {"folder": str(folder)}

    def change(self, folder):
        (folder / "train.tsv").write_text("good\tA fine day.\nbad\tIt snows.\n", encoding="utf-8")
