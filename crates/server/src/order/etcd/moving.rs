//! The end of an order in etcd: the mark that says where all file systems went.

use super::Cluster;
use holdfast_crypto::Digest;
use holdfast_etcd::{Compare, EtcdError, Step, Transaction};
use std::collections::BTreeMap;

impl Cluster {
    /// Notes where all file systems went: no server becomes the active one of any of them here from then on. Whether it is
    /// noted: not if another one has been the active one of any since this one was under these epochs.
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
