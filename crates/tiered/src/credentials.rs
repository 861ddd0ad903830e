//! Credentials from the usual places: the environment, or the shared credentials file.

use std::fmt;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// An access key with its secret. `Debug` does not print it.
#[derive(Clone)]
pub struct Credentials {
    /// The access key's ID.
    pub key_id: String,
    /// Its secret.
    pub secret: Zeroizing<String>,
    /// The token of temporary credentials.
    pub token: Option<Zeroizing<String>>,
    /// Where they are from, for messages.
    pub from: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials from {}", self.from)
    }
}

/// Why there are none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Neither the environment nor the file has any.
    #[error(
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to {file} (profile '{profile}')"
    )]
    None {
        /// The file that was looked for.
        file: String,
        /// The profile that was looked for.
        profile: String,
    },
    /// The file cannot be read.
    #[error("the credentials in {file} cannot be read: {why}")]
    Unreadable {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
}

impl Credentials {
    /// The environment's (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), or else those of a profile
    /// (`AWS_PROFILE`, or `default`) of the shared file (`AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/credentials`). Looked up
    /// for every request, so that new ones count at once.
    ///
    /// # Errors
    /// [`CredentialsError`]
    pub fn find() -> Result<Credentials, CredentialsError> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let (Some(key_id), Some(secret)) = (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
            return Ok(Credentials {
                key_id,
                secret: Zeroizing::new(secret),
                token: set("AWS_SESSION_TOKEN").map(Zeroizing::new),
                from: "the environment (AWS_ACCESS_KEY_ID)".to_owned(),
            });
        }
        let profile = set("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let file = set("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).unwrap_or_else(|| {
            PathBuf::from(set("HOME").unwrap_or_else(|| "/root".to_owned())).join(".aws/credentials")
        });
        let shown = file.display().to_string();
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CredentialsError::None { file: shown, profile });
            }
            Err(error) => return Err(CredentialsError::Unreadable { file: shown, why: error.to_string() }),
        };
        of_profile(&text, &profile, &shown).ok_or(CredentialsError::None { file: shown, profile })
    }
}

/// What a profile of the shared file says.
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

    /// Proves: the profile asked for counts, and no other; half a pair is none; nothing secret is shown.
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
