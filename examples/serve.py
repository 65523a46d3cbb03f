"""Serve labels, numbers or tags: pip install fastapi uvicorn; MODEL=served uvicorn --app-dir examples serve:app

curl localhost:8000/predict -H 'content-type: application/json' -d '{"inputs": ["the cat sat"]}'
"""

import json
import os
from typing import Annotated

import numpy as np
import onnxruntime
from fastapi import Body, FastAPI, HTTPException
from tokenizers import Tokenizer

app, folder = FastAPI(), os.environ.get("MODEL", "served")  # written by: electra-lab export FINETUNING served --onnx
session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.encode_special_tokens = True  # the names of special tokens are text
tokenizer.enable_padding()
facts, of_words = session.get_modelmeta().custom_metadata_map, len(session.get_outputs()[0].shape) == 3
labels, longest = json.loads(facts.get("labels", "[]")), int(facts["longest"])
Item = list[str] if of_words else str | tuple[str, str]  # the words of a sentence; a text, or a pair of texts


def answer(item, row, logits):
    if of_words:  # the tag of a word is that of its first token
        tags = {word: labels[logits[place].argmax()] for place, word in reversed([*enumerate(row.word_ids)])}
        return [tags.get(number, facts["usual"]) for number in range(len(item))]
    weights = np.exp(logits - logits.max())
    return dict(zip(labels, (weights / weights.sum()).tolist(), strict=True)) if labels else float(logits[0])


@app.post("/predict")
def predict(inputs: Annotated[list[Item], Body(embed=True, min_length=1, max_length=256)]) -> list:
    rows = tokenizer.encode_batch(inputs, is_pretokenized=of_words)
    if len(rows[0].ids) > longest:
        raise HTTPException(413, f"an input has {len(rows[0].ids)} tokens, and the model reads at most {longest}")
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    arrays = {name: np.array([getattr(row, part) for row in rows], np.int64) for name, part in parts.items()}
    return [*map(answer, inputs, rows, session.run(["logits"], arrays)[0].astype(float))]
