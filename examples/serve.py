"""Serve texts, pairs, or words for a tagger, [["the", "cat"]]: MODEL=served uvicorn --app-dir examples serve:app"""

import json
import os
from typing import Annotated

import numpy as np
import onnxruntime
from fastapi import Body, FastAPI, HTTPException, exceptions, responses  # pip install fastapi uvicorn
from tokenizers import Tokenizer

brief = {exceptions.RequestValidationError: lambda _, e: responses.JSONResponse({"detail": e.errors()[0]["msg"]}, 422)}
app, folder = FastAPI(exception_handlers=brief), os.environ.get("MODEL", "served")  # export FINETUNING served --onnx
session = onnxruntime.InferenceSession(f"{folder}/{os.environ.get('FILE', 'model.onnx')}")  # or model_int8.onnx
facts, of_words = session.get_modelmeta().custom_metadata_map, len(session.get_outputs()[0].shape) == 3
labels, longest = json.loads(facts.get("labels", "[]")), int(facts["longest"])
assert session.get_inputs()[0].shape == ["batch", "length"], "its sizes are fixed: export without --onnx-size"
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.encode_special_tokens = True  # the names of special tokens are text
tokenizer.enable_padding()
Text = Annotated[str, Body(max_length=30 * longest)]  # and not half of a character, as "\ud83d" is
Item = list[Text] if of_words else {"1": Text, "2": tuple[Text, Text]}.get(facts.get("texts"), Text | tuple[Text, Text])


def answer(item, row, logits):
    if of_words:  # the tag of a word is that of its first token
        tags = {word: labels[logits[place].argmax()] for place, word in reversed([*enumerate(row.word_ids)])}
        return [tags.get(number, facts["usual"]) for number in range(len(item))]
    return dict(zip(labels, np.exp(logits - np.logaddexp.reduce(logits)), strict=True)) if labels else float(logits[0])


@app.post("/predict")  # curl localhost:8000/predict -H content-type:application/json -d '{"inputs": ["the cat"]}'
def predict(inputs: Annotated[list[Item], Body(embed=True, min_length=1, max_length=256)]) -> list:
    inputs = [item.strip() if isinstance(item, str) else [*map(str.strip, item)] for item in inputs]
    huge = any(len(str(item)) > 30 * longest for item in inputs)  # its tokens would take much memory
    if huge or len((rows := tokenizer.encode_batch(inputs, is_pretokenized=of_words))[0].ids) > longest:
        raise HTTPException(413, f"an input is too long: the model reads at most {longest} tokens")
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    arrays = {name: np.array([getattr(row, part) for row in rows], np.int64) for name, part in parts.items()}
    return [*map(answer, inputs, rows, session.run(["logits"], arrays)[0].astype(float))]
