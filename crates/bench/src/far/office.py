"""An office document, made and saved as LibreOffice saves: a lock file beside it while it is open, everything packed
anew into a temporary file that takes the document's place, and copies saved by themselves in between."""

import os
import random
import sys
import zipfile
from xml.sax.saxutils import escape


def paragraphs_of(document):
    with zipfile.ZipFile(document) as archive:
        content = archive.read("content.xml").decode()
        rest = [(info, archive.read(info)) for info in archive.infolist() if info.filename != "content.xml"]
    return content.split("\n"), rest


def write(path, paragraphs, rest, save):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in rest:
            archive.writestr(info, data, info.compress_type)
        info = zipfile.ZipInfo("content.xml", (2024, 1, 1, 12, save, 0))
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, "\n".join(paragraphs))
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def make(document, text):
    numbers = random.Random(1)
    lines = open(text, encoding="utf-8", errors="replace").read().splitlines()
    paragraphs = [f'<text:p text:style-name="P{len(line) % 7}">{escape(line)}</text:p>' for line in lines]
    rest = [(zipfile.ZipInfo("mimetype"), b"application/vnd.oasis.opendocument.text")]
    # Pictures do not get smaller.
    for number in range(6):
        rest.append((zipfile.ZipInfo(f"Pictures/{number}.jpg"), numbers.randbytes(200_000)))
    write(document, paragraphs, rest, 0)


def save(document, saves):
    folder, name = os.path.split(document)
    lock = os.path.join(folder, f".~lock.{name}#")
    with open(lock, "w") as file:
        file.write(",user,host,01.01.2024 12:00,file:///home/user/.config/libreoffice/4;")
    paragraphs, rest = paragraphs_of(document)
    for number in range(saves):
        for place in range(3):
            at = (number * 7919 + place * 104729) % len(paragraphs)
            paragraphs[at] += f'\n<text:p text:style-name="P1">Added in save {number}, place {place}.</text:p>'
        # What was typed so far, saved by itself.
        copy = os.path.join(folder, f"{name}_{number % 2}.autosave")
        write(copy, paragraphs, rest, number)
        paragraphs[number * 31 % len(paragraphs)] += "<text:p>One more.</text:p>"
        temporary = os.path.join(folder, f"lu{number}a7x.tmp")
        write(temporary, paragraphs, rest, number)
        os.rename(temporary, document)
        os.remove(copy)
    os.remove(lock)


if sys.argv[1] == "make":
    make(sys.argv[2], sys.argv[3])
else:
    save(sys.argv[2], int(sys.argv[3]))
