//! Network namespaces with names that say whose they are.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names are this, the process's id, a number and the side.
const PREFIX: &str = "hfl";

/// A network namespace; removed, with the processes in it, when dropped.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn make(number: u64, side: &str) -> io::Result<Namespace> {
        let name = format!("{PREFIX}{}.{number}{side}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Namespace { name };
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Name of the device that leads out of the namespace: that of the namespace, which fits into a device
    /// name's 15 bytes.
    pub(crate) fn device(&self) -> &str {
        &self.name
    }

    /// Moves the device in and gives it this address; all of the link's addresses lie beyond it.
    pub(crate) fn take_device(&self, address: &str) -> io::Result<()> {
        ip(&["link", "set", self.device(), "netns", &self.name])?;
        self.inside(&["link", "set", self.device(), "up"])?;
        self.inside(&["addr", "add", &format!("{address}/24"), "dev", self.device()])
    }

    pub(crate) fn change_address(&self, old: &str, new: &str) -> io::Result<()> {
        self.inside(&["addr", "del", &format!("{old}/24"), "dev", self.device()])?;
        self.inside(&["addr", "add", &format!("{new}/24"), "dev", self.device()])
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    pub(crate) fn enter(&self) -> io::Result<()> {
        let namespace = std::fs::File::open(Path::new("/run/netns").join(&self.name))?;
        let kind = rustix::thread::LinkNameSpaceType::Network;
        Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?)
    }

    fn inside(&self, arguments: &[&str]) -> io::Result<()> {
        ip(&[&["-n", self.name.as_str()], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = remove(&self.name);
    }
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("ip {}: {why}", arguments.join(" "))))
}

/// Ends what runs in a namespace and removes it.
fn remove(name: &str) -> io::Result<()> {
    let listed = Command::new("ip").args(["netns", "pids", name]).stderr(Stdio::null()).output()?;
    for id in String::from_utf8_lossy(&listed.stdout).lines() {
        if let Some(id) = id.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
    }
    ip(&["netns", "del", name])
}

/// Removes what processes that have ended left behind.
pub(crate) fn sweep() -> io::Result<()> {
    let listed = Command::new("ip").args(["netns", "list"]).output()?;
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if let Some(owner) = owner(name)
            && !Path::new("/proc").join(owner).exists()
        {
            // Another process may sweep at the same time.
            let _ = remove(name);
        }
    }
    Ok(())
}

/// The id of the process that made the namespace of this name, if it is one of ours.
fn owner(name: &str) -> Option<&str> {
    let (id, rest) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let number = rest.strip_suffix(['c', 's'])?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(id) && is_number(number)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: only names of the form we give are ever swept.
    #[test]
    fn only_ours_are_swept() {
        assert_eq!(owner("hfl123.0c"), Some("123"));
        assert_eq!(owner("hfl99.17s"), Some("99"));
        for other in ["hfl", "hfl1", "hfl.0c", "hflx.0c", "hfl1.0", "hfl1.c", "hfl1/2.0c", "blue", "hfl1.0cc"]
        {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
