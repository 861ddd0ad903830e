//! The names that may be requested: those of [`crate::layout`], spelt exactly so, and no others.

/// Whether a file can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Named by its digest: it never changes.
    Immutable,
    /// Named by its purpose: it may be replaced.
    Changing,
}

/// The lifetime of the file `name`; `None` if the name is not of the layout. Escapes are not decoded, because
/// no name of the layout needs them.
pub fn lifetime(name: &str) -> Option<Lifetime> {
    let Some((folder, rest)) = name.split_once('/') else {
        return matches!(name, "root" | "revoked").then_some(Lifetime::Changing);
    };
    match folder {
        "packs" | "index" | "hints" => is_digest(rest).then_some(Lifetime::Immutable),
        "keys" | "records" => is_number(rest).then_some(Lifetime::Changing),
        _ => None,
    }
}

/// 64 hexadecimal digits, as `Digest` is printed.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text is a decimal number in canonical form.
fn is_number(text: &str) -> bool {
    text.len() <= 20
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && !text.starts_with('0')
        && !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;
    use holdfast_crypto::Digest;

    /// Proves: the names of the layout are served, and no others.
    #[test]
    fn what_is_served() {
        let digest = Digest([0xa7; 32]);
        for name in [layout::pack(&digest), layout::index(&digest), layout::hints(&digest)] {
            assert_eq!(lifetime(&name), Some(Lifetime::Immutable), "{name}");
        }
        let changing =
            [layout::ROOT.to_owned(), layout::REVOKED.to_owned(), layout::keys(1), layout::record(u64::MAX)];
        for name in changing {
            assert_eq!(lifetime(&name), Some(Lifetime::Changing), "{name}");
        }
        let upper = format!("packs/{digest}").to_uppercase();
        let longer = format!("packs/{digest}0");
        let inner = format!("packs/{digest}/x");
        let other = format!("secret/{digest}");
        for name in [
            "",
            "/",
            ".",
            "..",
            "root/",
            "/root",
            "keys",
            "keys/",
            "keys/0",
            "keys/01",
            "keys/-1",
            "keys/1/",
            "keys/../root",
            "packs/..",
            "packs/%2e%2e",
            "packs/root",
            "records/123456789012345678901",
            "root?",
            "root%00",
            ".git/config",
            &upper,
            &longer,
            &inner,
            &other,
        ] {
            assert_eq!(lifetime(name), None, "{name}");
        }
    }
}
