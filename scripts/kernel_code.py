"""What scripts/kernel-costs reads: the kernels of cubins and of PTX files, and their loops."""
import os
import pathlib
import re
import shutil
import subprocess
import sys


def run(command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"kernel-costs: {' '.join(map(str, command))} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def tool(name):
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/opt/cuda/bin"]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if not found:
        sys.exit(f"kernel-costs: no {name} in PATH; it comes with CUDA, cuobjdump and nvdisasm also by pip install "
                 "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    return found


def demangled(names):
    return run(["c++filt"], input="\n".join(names)).splitlines() if names else []


class Loop:
    """Of a tree: its places are those of all its instructions, its own those of no loop inside."""

    def __init__(self, places):
        self.places, self.inner = frozenset(places), []

    def add(self, other):
        for loop in self.inner:
            if other.places < loop.places:
                return loop.add(other)
        self.inner.append(other)

    def own(self):
        return self.places.difference(*(loop.places for loop in self.inner))

    def children(self):
        return sorted(self.inner, key=lambda loop: min(loop.places))

    def shape(self):
        return tuple(loop.shape() for loop in self.children())

    def walk(self):
        yield self
        for loop in self.children():
            yield from loop.walk()


def loops_of(places, jumps, stops):
    """The natural loops. jumps: {place: (target, conditional)}; stops: where a thread ends."""
    following = dict(zip(places, places[1:]))
    leaders = sorted({places[0], *(to for to, _ in jumps.values()), *(following.get(at) for at in [*jumps, *stops])} - {None})
    blocks, block_of = [], {}
    for first, end in zip(leaders, leaders[1:] + [places[-1] + 1]):
        blocks.append([p for p in places if first <= p < end])
        block_of[first] = len(blocks) - 1
    after = []
    for block in blocks:
        last = block[-1]
        to = [block_of[jumps[last][0]]] if last in jumps else []
        if last in following and last not in stops and (last not in jumps or jumps[last][1]):
            to.append(block_of[following[last]])
        after.append(to)
    before = [[b for b in range(len(blocks)) if a in after[b]] for a in range(len(blocks))]
    everything = (1 << len(blocks)) - 1
    dominators = [1] + [everything] * (len(blocks) - 1)
    changed = True
    while changed:
        changed = False
        for b in range(1, len(blocks)):
            common = everything
            for a in before[b]:
                common &= dominators[a]
            if dominators[b] != common | 1 << b:
                dominators[b], changed = common | 1 << b, True
    bodies = {}
    for b, to in enumerate(after):
        for head in to:
            if dominators[b] >> head & 1:
                body, left = bodies.setdefault(head, {head}), [b]
                while left:
                    a = left.pop()
                    if a not in body:
                        body.add(a)
                        left += before[a]
    tree = Loop(places)
    for body in sorted(bodies.values(), key=len, reverse=True):
        tree.add(Loop(p for b in body for p in blocks[b]))
    return tree


# What ptxas neither merges nor splits, and so tells how often it has unrolled a loop.
SASS_ANCHORS = re.compile(r"(@!?U?P\w+ )?(LDG|STG|ATOM[SG]?|REDG?|SHFL|MUFU|FFMA|BAR)\b")
PTX_ANCHORS = re.compile(r"\s+(@!?%p\d+ )?\s*(ld\.global|st\.global|atom|shfl|ex2|rcp\.approx|rsqrt|sqrt|lg2|fma\.\w+\.f32|bar\.sync)")


def kernels_of_cubin(cubin, folder):
    """{mangled name: registers, shared, stack, places, loops}"""
    environment = dict(os.environ, PATH=os.pathsep.join([str(folder), os.environ["PATH"]]))
    kernels = {}
    usage = run([folder / "cuobjdump", "--dump-resource-usage", cubin], env=environment)
    for name, text in re.findall(r"Function (\S+):\n\s*(.*)", usage):
        fields = dict(re.findall(r"(\w+(?:\[\d+\])?):(\d+)", text))
        kernels[name] = {"registers": int(fields["REG"]), "shared": int(fields["SHARED"]), "stack": int(fields["STACK"]),
                         "local": int(fields["LOCAL"])}
    sass = run([folder / "cuobjdump", "-sass", cubin], env=environment)
    for name, body in re.findall(r"Function : (\S+)\n(.*?)(?=\n\s*Function :|\Z)", sass, re.S):
        code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;/]*?)\s*;", body)]
        while code and re.match(r"NOP|BRA", code[-1][1]):  # what fills up the end
            code.pop()
        code = [(at, text) for at, text in code if not text.startswith("NOP")]
        jumps, stops = {}, []
        for at, text in code:
            branch = re.search(r"\bBRA\b(.*?)(0x[0-9a-f]+)", text)
            if branch:
                jumps[at] = (int(branch.group(2), 16), text[0] == "@" or "P" in branch.group(1))
            elif re.match(r"(EXIT|RET|BRX)\b", text):
                stops.append(at)
        places = [at for at, _ in code]
        jumps = {at: (min(p for p in places if p >= to), some) for at, (to, some) in jumps.items() if to <= places[-1]}
        kernels[name].update(places=places, loops=loops_of(places, jumps, stops),
                             anchors={at for at, text in code if SASS_ANCHORS.match(text)})
    return kernels


def kernels_of_ptx(file):
    """{mangled name: places (lines), loops}"""
    kernels, name = {}, None
    for number, line in enumerate(file.read_text().split("\n"), 1):
        entry = re.search(r"\.entry (\w+)\(", line)
        if entry:
            name, code, labels, jumps, stops, anchors = entry.group(1), [], {}, {}, [], set()
        elif name and line == "}":
            jumps = {p: (next((c for c in code if c >= labels[label]), code[-1]), some) for p, (label, some) in jumps.items()}
            kernels[name] = {"places": code, "loops": loops_of(code, jumps, stops), "anchors": anchors}
            name = None
        elif name:
            label = re.match(r"(\$\w+):", line)
            if label:
                labels[label.group(1)] = number
            elif re.match(r"\s+[@a-z{].*;", line):
                code.append(number)
                branch = re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line)
                if branch:
                    jumps[number] = (branch.group(1), "@" in line)
                elif re.match(r"\s+(ret|exit)", line):
                    stops.append(number)
                if PTX_ANCHORS.match(line):
                    anchors.add(number)
    return kernels
