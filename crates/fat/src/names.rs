//! Names: which are valid, when two are equal, and the short name for a long one.
//!
//! A long name is up to 255 units of UTF-16. Names that differ only in case are equal: each character is
//! compared by its upper case, if that converts back to it. Trailing dots do not count, as on Linux and
//! Windows.
//!
//! Attack answered: names on a medium may contain anything. A displayed name never contains a slash, a zero
//! or another invalid character, and is never `.`, `..` or empty; each such character is replaced by U+FFFD.

use crate::{FatError, Result};

/// Units of the longest name.
pub const NAME_UNITS_MAX: usize = 255;
/// Shown for a character that cannot be shown.
const REPLACED: char = '\u{fffd}';
/// Bits of a directory entry: base or extension are shown in lower case.
pub(crate) const LOWER_BASE: u8 = 0x08;
pub(crate) const LOWER_EXTENSION: u8 = 0x10;

/// The upper half of code page 437, in which the kernel decodes short names.
const CODE_PAGE_437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// A name that can be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    text: String,
    units: Vec<u16>,
    folded: Vec<char>,
}

fn forbidden(c: char) -> bool {
    c < ' ' || matches!(c, '"' | '*' | '/' | ':' | '<' | '>' | '?' | '\\' | '|')
}

impl Name {
    /// Checks a name from a request.
    pub fn new(text: &str) -> Result<Name> {
        let bad = |reason| Err(FatError::BadName { name: text.into(), reason });
        let kept = text.trim_end_matches('.');
        if kept.is_empty() {
            return bad("nothing is left of it without its trailing dots");
        }
        if kept.ends_with(' ') {
            return bad("a name on FAT cannot end with a space");
        }
        if kept.chars().any(forbidden) {
            return bad("on FAT a name cannot hold control characters or any of \" * / : < > ? \\ |");
        }
        let units: Vec<u16> = kept.encode_utf16().collect();
        if units.len() > NAME_UNITS_MAX {
            return bad("it is longer than 255 units of UTF-16");
        }
        Ok(Name { text: kept.into(), units, folded: kept.chars().map(fold).collect() })
    }

    /// The name, without trailing dots.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn units(&self) -> &[u16] {
        &self.units
    }

    /// Whether a name as it is shown is this one.
    pub(crate) fn is(&self, shown: &str) -> bool {
        self.folded.iter().copied().eq(shown.trim_end_matches('.').chars().map(fold))
    }

    /// Whether a long name found on the medium is this one.
    pub(crate) fn is_long(&self, units: &[u16]) -> bool {
        let dots = units.iter().rev().take_while(|unit| **unit == u16::from(b'.')).count();
        let units = &units[..units.len() - dots];
        // One unit for each of ours, since no character and its upper case differ in that.
        !units.is_empty()
            && units.len() == self.units.len()
            && self.folded.iter().copied().eq(decoded(units).map(fold))
    }

    /// Whether a short name found on the medium is this one.
    pub(crate) fn is_short(&self, short: &[u8; 11]) -> bool {
        self.folded.len() <= 12 && {
            let first = self.folded[0];
            let plain = first.is_ascii() && short[0].is_ascii_graphic();
            !(plain && first != char::from(short[0].to_ascii_uppercase())) && self.is(&shown_short(short, 0))
        }
    }
}

/// A character's upper case, if that is one character and converts back: so the dotless i is unchanged.
fn fold(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_uppercase();
    }
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(upper), None) => {
            let mut lower = upper.to_lowercase();
            match (lower.next(), lower.next()) {
                (Some(lower), None) if lower == c => upper,
                _ => c,
            }
        }
        _ => c,
    }
}

/// The characters of a long name, with what cannot be shown replaced.
fn decoded(units: &[u16]) -> impl Iterator<Item = char> + '_ {
    char::decode_utf16(units.iter().copied()).map(|c| c.ok().filter(|c| !forbidden(*c)).unwrap_or(REPLACED))
}

/// A long name on the medium as it is shown, or `None` if it is none.
pub(crate) fn shown_long(units: &[u16]) -> Option<String> {
    let text: String = decoded(units).collect();
    (!text.trim_end_matches('.').is_empty()).then_some(text)
}

fn shown_byte(byte: u8) -> char {
    match byte {
        0x80.. => CODE_PAGE_437.chars().nth(usize::from(byte - 0x80)).unwrap_or(REPLACED),
        _ if forbidden(char::from(byte)) || byte == b'.' => REPLACED,
        _ => char::from(byte),
    }
}

/// A short name as it is shown.
pub(crate) fn shown_short(short: &[u8; 11], case_bits: u8) -> String {
    let mut short = *short;
    if short[0] == 0x05 {
        short[0] = 0xe5; // The byte that would mean "deleted" is stored as this one.
    }
    let part = |bytes: &[u8], lower: bool| -> String {
        let length = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1);
        bytes[..length]
            .iter()
            .map(|byte| shown_byte(if lower { byte.to_ascii_lowercase() } else { *byte }))
            .collect()
    };
    let base = part(&short[..8], case_bits & LOWER_BASE != 0);
    let extension = part(&short[8..], case_bits & LOWER_EXTENSION != 0);
    let base = if base.is_empty() { REPLACED.to_string() } else { base };
    if extension.is_empty() { base } else { format!("{base}.{extension}") }
}

/// The bytes of a label, or none of an empty one.
pub(crate) fn label_bytes(label: &str) -> Result<Option<[u8; 11]>> {
    let bad = |reason| Err(FatError::BadName { name: label.into(), reason });
    let kept = label.trim_end_matches(' ');
    if kept.is_empty() {
        return Ok(None);
    }
    if kept.len() > 11 {
        return bad("a label has at most 11 characters");
    }
    let good = |c: char| c.is_ascii() && c != '\u{7f}' && !forbidden(c) && !".+,;=[]".contains(c);
    if kept.starts_with(' ') || !kept.chars().all(good) {
        return bad(
            "a label holds letters, digits and spaces of ASCII, but none of \" * + , . / : ; < = > ? [ \\ ] |",
        );
    }
    let mut bytes = [b' '; 11];
    bytes[..kept.len()].copy_from_slice(kept.to_ascii_uppercase().as_bytes());
    Ok(Some(bytes))
}

/// Whether a short name holds what none may: `fsck.fat` says so too.
pub(crate) fn short_is_sound(short: &[u8; 11]) -> bool {
    let sound = |(at, byte): (usize, &u8)| match *byte {
        0x05 => at == 0,
        b' ' => at != 0,
        0x7f | b'.' => false,
        byte => !forbidden(char::from(byte)),
    };
    short.iter().enumerate().all(sound)
}

/// The check sum of a short name that the pieces of its long name carry.
pub(crate) fn short_sum(short: &[u8]) -> u8 {
    short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
}

/// The short name that a name gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShortName {
    pub(crate) bytes: [u8; 11],
    /// Bits that say which parts are shown in lower case.
    pub(crate) case_bits: u8,
    /// Whether the short name alone says everything.
    pub(crate) alone: bool,
}

/// How a part of a name was changed to make it short.
#[derive(Clone, Copy)]
struct NameTraits {
    /// No character was left out or replaced.
    whole: bool,
    upper: bool,
    lower: bool,
}

fn shorten(text: &str, room: usize, out: &mut Vec<u8>) -> NameTraits {
    let mut part = NameTraits { whole: true, upper: false, lower: false };
    for c in text.chars() {
        let byte = match c {
            '.' | ' ' => {
                part.whole = false;
                continue;
            }
            'a'..='z' => {
                part.lower = true;
                c.to_ascii_uppercase() as u8
            }
            '+' | ',' | ';' | '=' | '[' | ']' | '\u{7f}'.. => {
                part.whole = false;
                b'_'
            }
            c => {
                part.upper |= c.is_ascii_uppercase();
                c as u8
            }
        };
        if out.len() == room {
            part.whole = false;
            break;
        }
        out.push(byte);
    }
    part
}

impl ShortName {
    /// Chooses a short name that is not taken: the name itself if it is short, else with a number as Windows
    /// does, else with a number and four digits computed from the long name.
    pub(crate) fn choose(name: &Name, taken: impl Fn(&[u8; 11]) -> bool) -> Option<ShortName> {
        let text = name.text();
        let lead = text.len() - text.trim_start_matches(['.', ' ']).len();
        // A dot that only such characters precede divides nothing.
        let (front, back) = match text.rfind('.').filter(|at| *at > lead) {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, ""),
        };
        let (mut base, mut extension) = (Vec::new(), Vec::new());
        let of_base = shorten(front, 8, &mut base);
        let of_extension = shorten(back, 3, &mut extension);
        if base.is_empty() {
            base.push(b'_');
        }
        let compose = |base: &[u8]| {
            let mut bytes = [b' '; 11];
            bytes[..base.len()].copy_from_slice(base);
            bytes[8..8 + extension.len()].copy_from_slice(&extension);
            bytes
        };
        if of_base.whole && of_extension.whole {
            let mixed = of_base.upper && of_base.lower || of_extension.upper && of_extension.lower;
            let bytes = compose(&base);
            let lower = |part: NameTraits, bit| if part.lower { bit } else { 0 };
            let bits = lower(of_base, LOWER_BASE) | lower(of_extension, LOWER_EXTENSION);
            // Taken by another's short name only, since the caller found no file of this name.
            if !taken(&bytes) {
                return Some(ShortName { bytes, case_bits: if mixed { 0 } else { bits }, alone: !mixed });
            }
        }
        let numbered = |stem: &[u8], number: u32| {
            let tail = format!("~{number}");
            let keep = stem.len().min(8 - tail.len());
            compose(&[&stem[..keep], tail.as_bytes()].concat())
        };
        let digits = format!("{:04X}", name.units().iter().fold(0x811c_9dc5u32, mix) & 0xffff);
        let hashed = [&base[..base.len().min(2)], digits.as_bytes()].concat();
        let simple = (1..10).map(|number| numbered(&base, number));
        let others = (1..100_000).map(|number| numbered(&hashed, number));
        let bytes = simple.chain(others).find(|bytes| !taken(bytes))?;
        Some(ShortName { bytes, case_bits: 0, alone: false })
    }
}

fn mix(hash: u32, unit: &u16) -> u32 {
    (hash ^ u32::from(*unit)).wrapping_mul(0x0100_0193)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short(text: &str) -> (String, u8, bool) {
        let short = ShortName::choose(&Name::new(text).expect(text), |_| false).expect(text);
        (String::from_utf8_lossy(&short.bytes).into_owned(), short.case_bits, short.alone)
    }

    /// Golden vectors: the short names that Windows and the kernel choose.
    #[test]
    fn short_names() {
        let expect = |bytes: &str, bits, alone| (bytes.to_string(), bits, alone);
        assert_eq!(short("README.TXT"), expect("README  TXT", 0, true));
        assert_eq!(short("readme.txt"), expect("README  TXT", LOWER_BASE | LOWER_EXTENSION, true));
        assert_eq!(short("README.txt"), expect("README  TXT", LOWER_EXTENSION, true));
        assert_eq!(short("ReadMe.txt"), expect("README  TXT", 0, false));
        assert_eq!(short("a long name.text"), expect("ALONGN~1TEX", 0, false));
        assert_eq!(short(".bashrc"), expect("BASHRC~1   ", 0, false));
        assert_eq!(short("a+b=c"), expect("A_B_C~1    ", 0, false));
        assert_eq!(short("été.txt"), expect("_T_~1   TXT", 0, false));
        assert_eq!(short("12345678.123"), expect("12345678123", 0, true));
        assert_eq!(short("123456789"), expect("123456~1   ", 0, false));
        assert_eq!(short("a.b.c"), expect("AB~1    C  ", 0, false));
        assert_eq!(short_sum(b"README  TXT"), 0x73);
    }

    /// Proves that a directory full of like names still finds a free one.
    #[test]
    fn numbers_go_on_when_nine_are_taken() {
        let name = Name::new("a long name.txt").unwrap();
        let mut taken = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let short = ShortName::choose(&name, |bytes| taken.contains(bytes)).expect("a free one");
            assert!(short_is_sound(&short.bytes));
            taken.insert(short.bytes);
        }
        assert_eq!(taken.len(), 2000);
    }

    #[test]
    fn names_that_cannot_be() {
        for text in
            ["", ".", "..", "...", "a ", "a/b", "a\0b", "a:b", "a\\b", "tab\t", "q?", &"x".repeat(256)]
        {
            assert!(Name::new(text).is_err(), "{text:?}");
        }
        assert!(Name::new(&"😀".repeat(128)).is_err());
        assert!(Name::new(&"😀".repeat(127)).is_ok());
        assert_eq!(Name::new("foo...").unwrap().text(), "foo");
    }

    #[test]
    fn case_does_not_count_and_dots_at_the_end_neither() {
        let is = |a: &str, b: &str| {
            let (name, units) = (Name::new(a).unwrap(), b.encode_utf16().collect::<Vec<u16>>());
            assert_eq!(name.is(b), name.is_long(&units), "{a} {b}");
            name.is(b)
        };
        assert!(is("Straße", "STRAßE") && is("ЖУК", "жук") && is("ΑΒΓ", "αβγ") && is("foo.", "FOO"));
        assert!(!is("ı", "I") && !is("ß", "ss") && !is("é", "e"));
    }

    proptest! {
        /// Proves that the displayed form of any bytes is a name that can be looked up, and that any name has
        /// a valid short one.
        #[test]
        fn any_bytes_are_shown_as_a_name(short: [u8; 11], bits: u8, units in proptest::collection::vec(any::<u16>(), 1..255)) {
            if let Some(shown) = shown_long(&units) && let Ok(name) = Name::new(&shown) {
                prop_assert!(name.is_long(&units) || shown.contains(REPLACED));
            }
            if let Ok(name) = Name::new(&shown_short(&short, bits)) {
                prop_assert!(name.is_short(&short));
            }
            for shown in [Some(shown_short(&short, bits)), shown_long(&units)].into_iter().flatten() {
                prop_assert!(!shown.contains(['/', '\0']) && shown != "." && shown != ".." && !shown.is_empty());
            }
        }

        #[test]
        fn any_name_has_a_sound_short_one(text in "\\PC{1,40}") {
            if let Ok(name) = Name::new(&text) {
                let short = ShortName::choose(&name, |_| false).expect("one");
                prop_assert!(short_is_sound(&short.bytes), "{:?}", short.bytes);
                if short.alone {
                    prop_assert_eq!(shown_short(&short.bytes, short.case_bits), name.text());
                }
            }
        }
    }
}
