//! Names in addresses and on pages. A name may be any bytes: not UTF-8, control characters, markup.

use std::fmt::Write;

/// The longest path that is looked up, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Text with all markup escaped.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            one => escaped.push(one),
        }
    }
    escaped
}

/// A name for people, not yet escaped for markup. Bytes that are not text, and characters that would change
/// how other text is displayed, appear as their numbers.
pub fn display_name(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for one in chunk.valid().chars() {
            if hidden(one) {
                one.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| by_number(&mut text, byte));
            } else {
                text.push(one);
            }
        }
        chunk.invalid().iter().for_each(|byte| by_number(&mut text, *byte));
    }
    text
}

fn by_number(text: &mut String, byte: u8) {
    write!(text, "\\x{byte:02x}").expect("memory");
}

/// Whether a character is invisible, or changes the direction of others.
fn hidden(one: char) -> bool {
    one.is_control()
        || matches!(
            one as u32,
            0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f
                | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0x10ffff
        )
}

/// The names of a path in an address, decoded; `None` if one of them is not a valid name.
pub fn names(path: &str) -> Option<Vec<Vec<u8>>> {
    if path.len() > 3 * PATH_BYTES_MAX {
        return None;
    }
    let names: Vec<Vec<u8>> = path.split('/').filter(|name| !name.is_empty()).map(decoded).collect();
    names.iter().all(|name| is_name(name)).then_some(names)
}

/// Whether a directory may contain this name.
pub fn is_name(name: &[u8]) -> bool {
    (1..=255).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digit = |place: usize| bytes.get(place).and_then(|digit| (*digit as char).to_digit(16));
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                found.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                found.push(*byte);
                at += 1;
            }
        }
    }
    found
}

/// The value of a field of a query, encoded as forms do.
pub fn field(query: &str, name: &str) -> Option<Vec<u8>> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(decoded(&value.replace('+', " ")))
}

/// A name as part of an address.
pub fn encoded(name: &[u8]) -> String {
    name.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(*byte as char),
            byte => write!(text, "%{byte:02X}").expect("memory"),
        }
        text
    })
}

/// A path as part of an address, with a slash before each name.
pub fn encoded_path(path: &[Vec<u8>]) -> String {
    path.iter().map(|name| format!("/{}", encoded(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: names of all kinds can be encoded in addresses and decoded again, and each is decoded as one
    /// name.
    #[test]
    fn all_names_come_back() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        for name in [&b"plain"[..], b"a b+c&d=e%20", b"<script>", b"..x", "\u{202e}gnp".as_bytes(), &all] {
            let encoded = encoded(name);
            assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)));
            assert_eq!(names(&format!("a/{encoded}")), Some(vec![b"a".to_vec(), name.to_vec()]));
            assert_eq!(field(&format!("x=1&after={encoded}"), "after").as_deref(), Some(name));
        }
        for none in ["..", ".", "a/../b", "%2e%2e", "a%2Fb", "a%00", &"a".repeat(256), &"a/".repeat(9000)] {
            assert_eq!(names(none), None, "{none}");
        }
        assert_eq!(names("%zz%4"), Some(vec![b"%zz%4".to_vec()]));
        assert_eq!(names("//a//"), Some(vec![b"a".to_vec()]));
        assert_eq!(field("find=a+b", "find").as_deref(), Some(&b"a b"[..]));
        assert_eq!(field("finder=a", "find"), None);
    }

    /// Proves: no text on a page is markup, moves other text, or hides it.
    #[test]
    fn what_is_shown_is_harmless() {
        assert_eq!(display_name(b"a\x1b[2J\xff"), "a\\x1b[2J\\xff");
        assert_eq!(display_name("a\u{202e}b\u{200b}".as_bytes()), "a\\xe2\\x80\\xaeb\\xe2\\x80\\x8b");
        assert_eq!(display_name("größe 大".as_bytes()), "größe 大");
        assert_eq!(escape("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
    }
}
