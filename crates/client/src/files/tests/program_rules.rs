//! Tests of rules for programs, as far as files are concerned: the guard is asked, and no call avoids it.

use super::tools::*;
use super::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A guard that admits reading, and records what it was asked.
#[derive(Default)]
struct Porter {
    asked: Mutex<Vec<String>>,
    admitted: Arc<Flag>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl OpenAdmission for Flag {
    fn is_given(&self) -> bool {
        self.0.load(SeqCst)
    }
}

impl Porter {
    fn note(&self, what: &str, entering: &OpenAttempt<'_>) {
        self.asked.lock().push(format!(
            "{what} {} {}",
            entering.path,
            String::from_utf8_lossy(entering.rules)
        ));
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }
}

impl ProgramGuard for Porter {
    fn enter(&self, entering: &OpenAttempt<'_>) -> OpenDecision {
        self.note("open", entering);
        match entering.flags.write {
            true => OpenDecision::Refused("reading only".into()),
            false => OpenDecision::Admitted,
        }
    }

    fn before_creating(&self, _directory: Ino) -> Result<(), FsError> {
        self.asked.lock().push("creating".into());
        Ok(())
    }

    fn created(&self, entering: &OpenAttempt<'_>) -> Arc<dyn OpenAdmission> {
        self.note("created", entering);
        self.admitted.clone()
    }

    fn refused(&self, entering: &OpenAttempt<'_>, _reason: &str) {
        self.note("refused", entering);
    }

    fn is_blind(&self, thread: u32) -> bool {
        thread == 99
    }
}

fn is_access<T>(result: Result<T, FsError>) -> bool {
    matches!(result, Err(FsError::Access(_)))
}

/// Proves: a file with rules is opened only if the guard admits it, is never cut by its name, and its rules
/// change only by a request to the mount; without a guard it cannot be opened; files without rules are not
/// affected.
#[test]
fn nothing_gets_by() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"secret", b"content");
    client.set_rules(ino, Some(b"R".to_vec())).unwrap();
    assert_eq!(client.rules(ino).unwrap(), Some(b"R".to_vec()));
    assert!(is_access(client.open(&WHO, ino, OpenFlags::READ)), "nobody is there to be asked");
    let porter = Arc::new(Porter::default());
    client.set_guard(porter.clone());
    let opened = client.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(client.read(opened, 0, 100).unwrap(), b"content");
    client.release(opened);
    assert!(is_access(client.open(&WHO, ino, OpenFlags::READ_WRITE)));
    assert!(is_access(client.create(&WHO, Ino::ROOT, b"secret", 0o644, OpenFlags::READ_WRITE)));
    assert!(is_access(set(&client, ino, SetAttributes { size: Some(0), ..SetAttributes::default() })));
    assert_eq!(
        porter.asked(),
        ["open secret R", "open secret R", "open secret R", "refused secret R"].map(str::to_owned)
    );
    let not_permitted = |result: Result<(), FsError>| matches!(result, Err(FsError::NotPermitted(_)));
    assert!(not_permitted(client.setxattr(&WHO, ino, RULES, b"", SetXattr::Any)));
    assert!(not_permitted(client.removexattr(&WHO, ino, RULES)));
    assert_eq!(client.getxattr(&WHO, ino, RULES).unwrap(), b"R");
    client.link(&WHO, ino, Ino::ROOT, b"link").unwrap();
    assert!(is_access(client.open(&WHO, stat(&client, b"link").unwrap().ino, OpenFlags::READ_WRITE)));
    assert!(client.is_blind(99) && !client.is_blind(98));
    porter.asked();
    client.set_rules(ino, None).unwrap();
    let opened = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    put(&client, opened, 0, b"changed");
    client.release(opened);
    assert!(porter.asked().is_empty());
}

/// Proves: files made in a directory with rules have these rules, their descriptors can be used only when the
/// program that made them was admitted, and a file without a name cannot be made there.
#[test]
fn directories_hand_down() {
    let world = World::new();
    let client = world.client(1, &[]);
    let porter = Arc::new(Porter::default());
    client.set_guard(porter.clone());
    let directory = client.mkdir(&WHO, Ino::ROOT, b"keys", 0o700).unwrap().ino;
    client.set_rules(directory, Some(b"D".to_vec())).unwrap();
    let (made, opened) = client.create(&WHO, directory, b"new", 0o600, OpenFlags::READ_WRITE).unwrap();
    assert_eq!(client.rules(made.ino).unwrap(), Some(b"D".to_vec()));
    assert_eq!(porter.asked(), ["creating".to_owned(), "created keys/new D".to_owned()]);
    assert!(is_access(client.write(opened.handle, 0, b"x", WriteSource::Call)));
    assert!(is_access(client.read(opened.handle, 0, 1)));
    assert!(is_access(client.fallocate(opened.handle, 0, 10, Allocate::Extend)));
    let cut = SetAttributes { size: Some(9), ..SetAttributes::default() };
    assert!(is_access(client.setattr(&WHO, made.ino, cut, Some(opened.handle))));
    porter.admitted.0.store(true, SeqCst);
    put(&client, opened.handle, 0, b"x");
    client.flush(opened.handle).unwrap();
    client.release(opened.handle);
    let below = client.mkdir(&WHO, directory, b"below", 0o700).unwrap().ino;
    assert_eq!(client.rules(below).unwrap(), Some(b"D".to_vec()));
    let link = client.symlink(&WHO, directory, b"link", b"new").unwrap().ino;
    assert_eq!(client.rules(link).unwrap(), None);
    let nameless = client.tmpfile(&WHO, directory, 0o600, OpenFlags::READ_WRITE);
    assert!(matches!(nameless, Err(FsError::Unsupported)));
    client.rename(&WHO, directory, b"new", Ino::ROOT, b"moved", RenameFlags::Replace).unwrap();
    assert!(is_access(client.open(&WHO, made.ino, OpenFlags::READ_WRITE)));
}
