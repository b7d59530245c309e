"""The teacher over a pipe: texts as lines of JSON in, vectors as lines of JSON out. The bench compares with it."""

import json, sys

import torch

from teacher import Teacher, folder, token_ids

teacher = Teacher(folder(), "cuda" if torch.cuda.is_available() else "cpu")
texts = [json.loads(line) for line in sys.stdin]
for vector in teacher.encode(token_ids(teacher.tokenizer, texts), batch_tokens=8192):
    print(json.dumps([round(x, 6) for x in vector.tolist()]))
