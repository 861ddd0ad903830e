//! The end of orders in etcd: the mark that says where all file systems were moved to.

use super::Cluster;
use holdfast_crypto::Digest;
use holdfast_etcd::{Compare, EtcdError, Step, Transaction};
use std::collections::BTreeMap;

impl Cluster {
    /// Notes where all file systems were moved to; from then on no server becomes active here. Returns false
    /// if another server has become the active one of any of them since this one did, under these `epochs`:
    /// then nothing is noted.
    pub(crate) fn put_moved(&self, text: &str, epochs: &BTreeMap<Digest, i64>) -> Result<bool, EtcdError> {
        let is_active = |(id, epoch): (&Digest, &i64)| Compare::Created(self.space.of("active", id), *epoch);
        let transaction = Transaction {
            compares: epochs.iter().map(is_active).collect(),
            steps: vec![Step::Put(self.space.moved(), text.into(), None)],
            otherwise: Vec::new(),
        };
        self.space.kv.transact(&transaction)?;
        Ok(self.moved()?.as_deref() == Some(text))
    }
}
