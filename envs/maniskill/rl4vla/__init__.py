"""`maniskill/PutOnPlateInScene25*`: RL4VLA's put-on-plate-in-scene tasks, where their assets are present.

A WidowX 250S in a BridgeData scene puts one of 25 objects on a plate; everything behind robot and objects is replaced
by a photograph. Each id varies one thing, and `env.split` says whether it shows what training shows ("in"), what is
held out ("out"), or either ("both").

The protocol is that of Liu et al., "What Can RL Bring to VLA Generalization?" (arXiv 2505.19789), as its public code
and RLinf's public configurations state it: ids, sets, numbers and wordings. The code here is our own. `variants` lists
the tasks, `places` where things can stand, `collection` reads the assets, `draw` turns a seed into an episode,
`overlay` finishes a picture (none of these imports the simulator), `task` is the ManiSkill task.
"""
