"""What simulators and recipes need besides code: a registry of assets, and where they lie, come from and are checked.

`catalogue` lists what is known, `shipped` finds what ships in this package, `resolve` says where an asset lies on this
machine, `fetch` brings one that is missing, `manifest` checks files against their recorded SHA-256. Nothing here
imports a simulator, and nothing is ever downloaded without being asked for.
"""

from sim_assets.catalogue import all_assets, find_asset, needed_by
from sim_assets.records import Asset
from sim_assets.resolve import Found, chosen_folder, locate, require

__all__ = ["Asset", "Found", "all_assets", "chosen_folder", "find_asset", "locate", "needed_by", "require"]
