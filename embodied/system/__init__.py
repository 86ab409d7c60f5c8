"""The machine under the project: set-up of the environment, detection of foreign packages, and the doctor's checks."""
