"""What `--cfg` prints of a configuration."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evalkit.configuration.nodes import one_line, paths, plain
from evalkit.configuration.schema import completed, unknown
from evalkit.core.errors import UserError


def shown(config: DictConfig, hydra: Mapping[str, Any], which: str, package: str | None, resolve: bool) -> str:
    """The YAML that `--cfg job`, `hydra` or `all` prints, of the part `package` alone if there is one.

    `hydra` is Hydra's own part; `resolve` replaces `${…}` by what it stands for. Raises UserError for a part that is
    not there.
    """
    job = completed(plain(config, resolve=False))
    own = {"hydra": hydra} if hydra else {}
    whole = DictConfig({**job, **own})
    if resolve:
        whole = DictConfig(_resolved(whole))
    if package is None:
        kept = {"job": list(job), "hydra": list(own), "all": [*job, *own]}[which]
        return OmegaConf.to_yaml(OmegaConf.masked_copy(whole, kept))
    known = [*paths(job), *paths(own)]
    if package not in known:
        raise UserError(unknown(package, known))
    with one_line():
        part = OmegaConf.select(whole, package)
    return OmegaConf.to_yaml(part) if OmegaConf.is_config(part) else f"{part}\n"


def _resolved(node: Any) -> Any:
    """`node` as plain data, each `${…}` replaced; what has no value before the run starts stays as it is written."""
    if not OmegaConf.is_config(node):
        return node
    written: Any = OmegaConf.to_container(node, resolve=False)
    if not written:
        return written
    resolved = {}
    for key in written if isinstance(written, dict) else range(len(written)):
        try:
            resolved[key] = written[key] if OmegaConf.is_missing(node, key) else _resolved(node[key])
        except OmegaConfBaseException:
            resolved[key] = written[key]
    return resolved if isinstance(written, dict) else list(resolved.values())
