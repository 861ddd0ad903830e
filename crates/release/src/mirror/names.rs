//! A cache of host addresses: thousands of small requests would otherwise cost a look-up each, which is more
//! than the request itself.

use parking_lot::Mutex;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// How long addresses are cached.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Caches the addresses of one host: a mirror has one, and perhaps that of a proxy before it.
#[derive(Debug, Default)]
pub struct CachingResolver {
    system: DefaultResolver,
    last: Mutex<Option<CachedAddresses>>,
}

#[derive(Debug)]
struct CachedAddresses {
    host: String,
    when: Instant,
    addresses: Vec<SocketAddr>,
}

impl Resolver for CachingResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = match (uri.scheme(), uri.authority()) {
            (Some(scheme), Some(authority)) => DefaultResolver::host_and_port(scheme, authority),
            _ => None,
        }
        .ok_or(ureq::Error::HostNotFound)?;
        if let Some(last) = &*self.last.lock()
            && last.host == host
            && last.when.elapsed() < REMEMBERED
        {
            let mut addresses = self.empty();
            last.addresses.iter().for_each(|address| addresses.push(*address));
            return Ok(addresses);
        }
        let found = self.system.resolve(uri, config, timeout)?;
        let addresses = found.iter().copied().collect();
        *self.last.lock() = Some(CachedAddresses { host, when: Instant::now(), addresses });
        Ok(found)
    }
}
