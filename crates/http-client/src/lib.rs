//! The common set-up of all HTTP clients: mirrors, object stores, etcd, witnesses.
//!
//! Invariants: a server's certificate is verified only by the given authorities; every status is a reply, not
//! an error; and no redirection is followed, because it would take a signed or trusted request to an
//! unintended place. Each client sets its own deadlines: none is set here.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock};
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, ClientCert, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;
use ureq::{Agent, Proxy};

/// The certificate authorities that verify servers.
#[derive(Clone, Debug)]
pub enum Authorities {
    /// No authorities: there is no TLS, and a server with TLS is refused.
    None,
    /// The authorities that this machine trusts.
    System,
    /// These authorities, and no others.
    Given(Vec<Certificate<'static>>),
}

impl Authorities {
    /// The authorities that a URL needs: none without TLS, unless the environment's proxy may be reached by
    /// it.
    pub fn of_url(url: &str) -> Authorities {
        match url.starts_with("https:") || Proxy::try_from_env().is_some() {
            true => Authorities::System,
            false => Authorities::None,
        }
    }

    fn certificates(self) -> Arc<Vec<Certificate<'static>>> {
        match self {
            Authorities::None => Arc::default(),
            Authorities::System => system(),
            Authorities::Given(certificates) => Arc::new(certificates),
        }
    }
}

/// The configuration of a client. `own` is the certificate it presents if the server asks for one. The caller
/// sets deadlines.
pub fn client(authorities: Authorities, own: Option<ClientCert>) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(authorities.certificates()))
        .client_cert(own)
        .unversioned_rustls_crypto_provider(provider())
        .build();
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("holdfast/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    static PROVIDER: OnceLock<Arc<rustls::crypto::CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone()
}

/// The certificate authorities of this machine, read once.
fn system() -> Arc<Vec<Certificate<'static>>> {
    static SYSTEM: OnceLock<Arc<Vec<Certificate<'static>>>> = OnceLock::new();
    let system = SYSTEM.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            tracing::warn!(
                "this machine has no certificate authorities (package ca-certificates): nothing can be reached by https"
            );
        }
        Arc::new(found.certs.iter().map(|one| Certificate::from_der(one).to_owned()).collect())
    });
    system.clone()
}
