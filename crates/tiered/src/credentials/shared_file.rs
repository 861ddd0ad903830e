//! The shared credentials file: sections of profiles.

use super::identity::Environment;
use super::{Credentials, CredentialsError};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// A profile (`AWS_PROFILE`, or `default`) of the shared file (`AWS_SHARED_CREDENTIALS_FILE`, or
/// `~/.aws/credentials`).
pub(super) struct SharedFile {
    file: PathBuf,
    pub(super) profile: String,
}

impl SharedFile {
    pub(super) fn of(set: Environment<'_>) -> SharedFile {
        let usual =
            || PathBuf::from(set("HOME").unwrap_or_else(|| "/root".to_owned())).join(".aws/credentials");
        SharedFile {
            file: set("AWS_SHARED_CREDENTIALS_FILE").map_or_else(usual, PathBuf::from),
            profile: set("AWS_PROFILE").unwrap_or_else(|| "default".to_owned()),
        }
    }

    /// The file's name, for messages.
    pub(super) fn shown(&self) -> String {
        self.file.display().to_string()
    }

    /// The profile's credentials; `None` if there is no file, or it does not have them.
    pub(super) fn read(&self) -> Result<Option<Credentials>, CredentialsError> {
        match std::fs::read_to_string(&self.file) {
            Ok(text) => Ok(of_profile(&Zeroizing::new(text), &self.profile, &self.shown())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CredentialsError::Unreadable { file: self.shown(), why: error.to_string() }),
        }
    }
}

/// The credentials of a profile in the text of a shared file.
fn of_profile(text: &str, profile: &str, file: &str) -> Option<Credentials> {
    let (mut inside, mut key_id, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside && !line.starts_with('#')) {
            let value = Zeroizing::new(value.trim().to_owned());
            match key.trim() {
                "aws_access_key_id" => key_id = Some(value),
                "aws_secret_access_key" => secret = Some(value),
                "aws_session_token" => token = Some(value),
                _ => {}
            }
        }
    }
    Some(Credentials {
        key_id: key_id?.to_string(),
        secret: secret?,
        token,
        from: format!("{file}, profile '{profile}'"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: only the requested profile is used; half a pair counts as none; and no secret is printed.
    #[test]
    fn profiles_are_read() {
        let text = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=hidden\n\n[team]\n\
                    aws_access_key_id=B\naws_secret_access_key = t/s+==\naws_session_token=T\n[half]\naws_access_key_id=C\n";
        let team = of_profile(text, "team", "f").unwrap();
        assert_eq!((team.key_id.as_str(), team.secret.as_str()), ("B", "t/s+=="));
        assert_eq!(team.token.as_ref().map(|token| token.as_str()), Some("T"));
        let usual = of_profile(text, "default", "f").unwrap();
        assert_eq!((usual.key_id.as_str(), usual.token.is_none()), ("A", true));
        assert!(!format!("{usual:?}").contains("hidden"));
        assert!(of_profile(text, "half", "f").is_none() && of_profile(text, "none", "f").is_none());
    }
}
