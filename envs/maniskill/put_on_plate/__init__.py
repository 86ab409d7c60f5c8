"""`maniskill/PutOnPlate-v1`: put the object that the instruction names on the plate; all assets are procedural.

A family for experiments on generalisation, after RL4VLA's put-on-plate-in-scene tasks: `env.split=in` is what a policy
is trained on, every other split differs from it in one respect. `things` lists objects, plates, looks and phrases,
`draw` turns a seed into an episode (neither imports the simulator), `building` and `looks` make them, `task` is the
ManiSkill task.
"""
